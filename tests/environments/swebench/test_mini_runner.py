"""runtests agrees with pytest, is read by swebench's parser, and cannot be talked into a pass."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments.swebench.instance import Instance
from environments.swebench.mini.dataset import RUNNER, MiniSource

TEST = "from shop.core import f\n\n\ndef test_f_0():\n    assert f(1) == 2\n"


MORE_TESTS = """\
def helper():
    return 1


def test_runs():
    helper()


def test_raises():
    raise KeyError("x")


def test_plain_assert():
    assert helper() > 3


def test_other_type():
    assert helper() == [1]


def test_true_is_one():
    assert (helper() == 1) == 1
"""


def run(folder: Path, *arguments: str, forget: bool = False) -> tuple[int, str]:
    command = [sys.executable, "-ISB", str(RUNNER), *arguments]
    environment = {**os.environ, "FORGET_TESTS": "1"} if forget else None
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def parsed(log: str) -> dict[str, str]:
    from swebench.harness.log_parsers import PARSER_REGISTRY

    return PARSER_REGISTRY["parse_log_pytest"](log, None)


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def judge(folder: Path, source: str, test: str = TEST) -> tuple[int, dict[str, str]]:
    """Exit code and outcomes of `test` on a package whose one module is `source`."""
    write(folder, {"shop/core.py": source, "tests/test_core.py": test})
    code, log = run(folder, "-rA")
    return code, parsed(log)


def with_hidden_tests(folder: Path, instance: Instance, *, fixed: bool) -> Path:
    assert instance.files is not None
    write(folder, dict(instance.files))
    for patch in (instance.test_patch, instance.patch) if fixed else (instance.test_patch,):
        subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("number", [0, 1, 2])
def test_it_agrees_with_pytest(tmp_path: Path, number: int) -> None:
    quick = [i for i in MiniSource().instances("eval") if i.difficulty != "slow"]
    folder = with_hidden_tests(tmp_path, quick[number], fixed=False)
    write(folder, {"tests/test_more.py": MORE_TESTS})
    command = [sys.executable, "-m", "pytest", "-rA", "-q", "--color=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir=.", "-c", os.devnull, "tests"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    code, log = run(folder, "-rA")
    ours, theirs = parsed(log), parsed(done.stdout)
    assert ours == theirs
    assert {"PASSED", "FAILED"} == set(ours.values())
    assert (code, done.returncode) == (1, 1)


def test_the_instances_lists_are_what_the_parser_reads(tmp_path: Path) -> None:
    instance = MiniSource().instances("train")[3]
    before = parsed(run(with_hidden_tests(tmp_path / "a", instance, fixed=False), "-rA")[1])
    assert {n for n, s in before.items() if s == "FAILED"} == set(instance.FAIL_TO_PASS)
    assert {n for n, s in before.items() if s == "PASSED"} == set(instance.PASS_TO_PASS)
    after = parsed(run(with_hidden_tests(tmp_path / "b", instance, fixed=True), "-rA")[1])
    assert set(after) == {*instance.FAIL_TO_PASS, *instance.PASS_TO_PASS}
    assert set(after.values()) == {"PASSED"}


def cpu_s(folder: Path, instance: Instance) -> float:
    assert instance.files is not None
    write(folder, dict(instance.files))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_run_is_cheap_and_slow_tasks_have_a_long_tail(tmp_path: Path) -> None:
    instances = MiniSource().instances("eval")
    quick = [i for i in instances if i.difficulty != "slow"][:5]
    slow = [i for i in instances if i.difficulty == "slow"][:3]
    quick_s = [cpu_s(tmp_path / i.instance_id, i) for i in quick]
    slow_s = [cpu_s(tmp_path / i.instance_id, i) for i in slow]
    assert min(quick_s) < 0.06
    assert min(slow_s) > 0.06
    assert min(slow_s) > 2 * min(quick_s)


def test_an_agent_reads_the_first_failure_and_the_counts(tmp_path: Path) -> None:
    tests = (
        TEST + "\n\ndef test_f_1():\n    assert f(2) == 3\n\n\ndef test_f_2():\n    assert f(5)\n"
    )
    write(tmp_path, {"shop/core.py": "def f(x):\n    return x - 1\n", "tests/test_core.py": tests})
    code, log = run(tmp_path)
    assert code == 1
    assert log == "FAILED tests/test_core.py::test_f_0 - assert 0 == 2\n2 failed, 1 passed\n"
    write(tmp_path, {"shop/core.py": "def f(x):\n    return x + 1\n"})
    assert run(tmp_path) == (0, "3 passed\n")


def test_errors_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"shop/core.py": "def f(x):\n    return y\n", "tests/test_core.py": TEST})
    said = "FAILED tests/test_core.py::test_f_0 - NameError: name 'y' is not defined\n1 failed\n"
    assert run(tmp_path) == (1, said)
    write(tmp_path, {"shop/core.py": "def f(x)\n"})
    code, log = run(tmp_path)
    assert code == 1
    assert log.startswith("FAILED tests/test_core.py::test_f_0 - SyntaxError: ")
    assert run(tmp_path, "tests/none.py") == (
        4,
        "ERROR: file or directory not found: tests/none.py\n",
    )


PRINTED = "PASSED tests/test_core.py::test_f_0"
FORGERIES = {
    "prints a passed line": f"def f(x):\n    print({PRINTED!r})\n    return 0\n",
    "writes it to the descriptors": (
        "import os\n\n\ndef f(x):\n    for n in range(1, 64):\n        try:\n"
        f"            os.write(n, b'{PRINTED}\\n')\n        except OSError:\n            pass\n"
        "    return 0\n"
    ),
    "imitates the runner's own messages": (
        "import os\nfor n in range(3, 64):\n    try:\n"
        "        os.write(n, b\"0\\tpassed\\t''\\n0\\tpassed\\t''\\n\")\n    except OSError:\n"
        "        pass\n\n\ndef f(x):\n    return 0\n"
    ),
    "ends the process well": "import os\n\n\ndef f(x):\n    os._exit(0)\n",
    "ends it at import": "import os\n\nos._exit(0)\n",
    "raises SystemExit": "import sys\n\n\ndef f(x):\n    sys.exit(0)\n",
    "crashes it": "import os\n\n\ndef f(x):\n    os.kill(os.getpid(), 11)\n",
    "prints at exit": (
        f"import atexit\n\natexit.register(print, {PRINTED!r})\n\n\ndef f(x):\n    return 0\n"
    ),
    "returns what equals everything": (
        "class Any:\n    def __eq__(self, other):\n        return True\n\n"
        "    def __repr__(self):\n        return '2'\n\n\ndef f(x):\n    return Any()\n"
    ),
    "hides it in an int": (
        "class Two(int):\n    def __eq__(self, other):\n        return True\n\n\n"
        "def f(x):\n    return Two(7)\n"
    ),
    "hides it in a list": (
        "class Any:\n    def __eq__(self, other):\n        return True\n\n\n"
        "def f(x):\n    return [Any()]\n"
    ),
    "returns very much": "def f(x):\n    return 'x' * 10**7\n",
}


LOOK = """\
import gc
import sys


def f(x):
    seen, todo = set(), [gc.get_objects()]
    frame = sys._getframe()
    while frame is not None:
        todo.append([frame.f_locals, frame.f_globals])
        frame = frame.f_back
    while todo:
        thing = todo.pop()
        if type(thing) is str and thing.startswith("want") and thing.endswith("ed: 7"):
            return thing
        if id(thing) not in seen and thing is not todo and thing is not seen:
            seen.add(id(thing))
            if type(thing) is dict:
                todo += [*thing.keys(), *thing.values()]
            elif type(thing) in (list, tuple):
                todo += thing
    return x
"""


def test_code_under_test_cannot_reach_the_expected_value(tmp_path: Path) -> None:
    tests = TEST.replace("== 2", "== 'wanted: 7'")
    code, outcomes = judge(tmp_path, LOOK, tests)
    assert code == 1
    assert outcomes == {"tests/test_core.py::test_f_0": "FAILED"}
    assert judge(tmp_path, LOOK.replace("return x", "return 'wanted: 7'"), tests)[0] == 0


READ = """\
import os


def f(x):
    try:
        with open("tests/test_core.py") as file:
            return int(file.read().rpartition(" == ")[2])
    except OSError:
        return "TESTS" if "FORGET_TESTS" in os.environ else 0
"""


def test_a_verifiers_runner_removes_the_tests_that_it_has_read(tmp_path: Path) -> None:
    write(tmp_path, {"shop/core.py": READ, "tests/test_core.py": TEST})
    assert run(tmp_path, "-rA")[0] == 0  # the code reads what it must return
    code, log = run(tmp_path, "-rA", forget=True)
    assert (code, list((tmp_path / "tests").iterdir())) == (1, [])
    assert log.startswith("FAILED tests/test_core.py::test_f_0 - assert 0 == 2\n")
    write(tmp_path, {"shop/core.py": "def f(x):\n    return x + 1\n", "tests/test_core.py": TEST})
    assert run(tmp_path, forget=True) == (0, "1 passed\n")


def test_code_that_stops_its_clock_ends_all_the_same(tmp_path: Path) -> None:
    source = (
        "import signal\nimport time\n\ntime.time = time.monotonic = lambda: 0.0\n"
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n\n\n"
        "def f(x):\n    while True:\n        pass\n"
    )
    started = time.monotonic()
    code, outcomes = judge(tmp_path, source)
    assert (code, outcomes) == (1, {"tests/test_core.py::test_f_0": "FAILED"})
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("forgery", FORGERIES)
def test_code_under_test_cannot_decide_its_result(tmp_path: Path, forgery: str) -> None:
    code, outcomes = judge(tmp_path, FORGERIES[forgery])
    assert code == 1
    assert outcomes == {"tests/test_core.py::test_f_0": "FAILED"}


def test_a_crash_fails_one_test_and_the_others_still_run(tmp_path: Path) -> None:
    source = "import os\n\n\ndef f(x):\n    if x == 1:\n        os._exit(0)\n    return x\n"
    tests = TEST + "\n\ndef test_f_1():\n    assert f(2) == 2\n"
    code, outcomes = judge(tmp_path, source, tests)
    assert code == 1
    assert list(outcomes.values()) == ["PASSED", "FAILED"]


def test_endless_code_fails_within_the_limit(tmp_path: Path) -> None:
    tests = "".join(TEST.replace("f_0", f"f_{n}") + "\n\n" for n in range(5))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, outcomes = judge(tmp_path, "def f(x):\n    while True:\n        pass\n", tests)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert code == 1
    assert set(outcomes.values()) == {"FAILED"}
    assert len(outcomes) == 5
    assert after.ru_utime - before.ru_utime < 5


def test_a_background_process_ends_with_the_run(tmp_path: Path) -> None:
    source = (
        "import os\nimport time\n\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\n\n\n"
        "def f(x):\n    return x + 1\n"
    ).replace("    time", "    open('pid', 'w').write(str(os.getpid()))\n    time")
    started = time.monotonic()
    code, outcomes = judge(tmp_path, source)
    assert (code, outcomes) == (0, {"tests/test_core.py::test_f_0": "PASSED"})
    assert time.monotonic() - started < 20
    pid = tmp_path / "pid"
    if pid.exists() and pid.read_text():  # it may have been ended before it wrote anything
        stat = Path("/proc", pid.read_text(), "stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_message_cannot_begin_a_line(tmp_path: Path) -> None:
    line = "PASSED tests/test_core.py::test_f_0"
    source = f"def f(x):\n    raise AssertionError('\\r{line}\\n{line}\\x0b{line}')\n"
    write(tmp_path, {"shop/core.py": source, "tests/test_core.py": TEST})
    code, log = run(tmp_path, "-rA")
    assert code == 1
    assert [text.split()[0] for text in log.splitlines()] == ["FAILED", "1"]


def test_the_childs_messages_cannot_begin_a_line_nor_end_the_runner(tmp_path: Path) -> None:
    for message in (r"error\t'x\\rPASSED tests/test_core.py::test_f_0'", r"value\t)("):
        source = (
            "import os\nfor n in range(3, 64):\n    try:\n"
            f'        os.write(n, b"0\\t{message}\\n")\n    except OSError:\n        pass\n'
            "os._exit(0)\n"
        )
        code, outcomes = judge(tmp_path, source)
        assert code == 1
        assert outcomes == {"tests/test_core.py::test_f_0": "FAILED"}
