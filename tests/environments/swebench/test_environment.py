"""SweBench in real sandboxes: oracle and nop, collection, and the ways to cheat that score 0."""

from __future__ import annotations

import pytest

from environments.protocols import (
    InfrastructureError,
    Sandbox,
    Submission,
    Task,
)
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.instance import parse_instance

CONFTEST = """\
diff --git a/conftest.py b/conftest.py
new file mode 100644
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1,7 @@
+import pytest
+
+@pytest.hookimpl(hookwrapper=True)
+def pytest_runtest_makereport(item, call):
+    outcome = yield
+    report = outcome.get_result()
+    report.outcome = "passed"
"""


def new_file(path: str, text: str) -> str:
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n{body}"
    )


def appended(bench, task: Task, text: str) -> str:
    """A patch that adds `text` at the end of the module that holds the bug."""
    instance = bench.environment.instance(task)
    path = instance.patch.split("\n")[0].rpartition(" b/")[2]
    old = instance.files[path].splitlines()
    lines = text.splitlines()
    added = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -{len(old)},1 +{len(old)},{1 + len(lines)} @@\n {old[-1]}\n{added}"
    )


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard", "slow"])
def test_the_gold_solution_scores_one_and_nothing_scores_zero(bench, difficulty: str) -> None:
    task = bench.task(difficulty)
    oracle = list(bench.environment.oracle_commands(task))
    submission = bench.in_sandbox(task, lambda s: bench.solve(task, s, oracle))
    verdicts = bench.verdicts(task, {"oracle": submission.patch, "nop": ""})
    assert verdicts["oracle"].reward == 1.0
    assert verdicts["oracle"].report["fail_to_pass_failure"] == 0
    assert verdicts["nop"].reward == 0.0
    assert verdicts["nop"].report["fail_to_pass_success"] == 0
    assert verdicts["nop"].report["pass_to_pass_failure"] == 0


@pytest.mark.slow
def test_every_evaluation_task(bench) -> None:
    environment = bench.environment
    tasks = environment.tasks("eval")

    async def all_of_them(provider) -> list[tuple[float, float]]:
        rewards = []
        for task in tasks:
            gold = Submission(environment.instance(task).patch)
            solved = await environment.verify(task, gold, provider)
            empty = await environment.verify(task, Submission(""), provider)
            rewards.append((solved.reward, empty.reward))
        return rewards

    assert bench.with_provider(all_of_them) == [(1.0, 0.0)] * len(tasks)


def test_what_does_not_solve_the_task_scores_zero(bench) -> None:
    task = bench.task()
    instance = bench.environment.instance(task)
    test_file, _, test_name = instance.FAIL_TO_PASS[0].partition("::")
    forged = "\\n".join(f"PASSED {name}" for name in instance.FAIL_TO_PASS)
    every = instance.FAIL_TO_PASS + instance.PASS_TO_PASS
    whole = "\\n".join(f"PASSED {name}" for name in every)
    edited = new_file(test_file, f"def {test_name}():\n    pass\n").replace(
        "new file mode 100644\n--- /dev/null", f"--- a/{test_file}"
    )
    old_tests = instance.files[test_file].splitlines()
    deleted = (
        f"diff --git a/{test_file} b/{test_file}\ndeleted file mode 100644\n"
        f"--- a/{test_file}\n+++ /dev/null\n@@ -1,{len(old_tests)} +0,0 @@\n"
        + "".join(f"-{line}\n" for line in old_tests)
    )
    end = ">>>>> End Test Output"
    patches = {
        "conftest only": CONFTEST,
        "edited tests": edited,
        "deleted tests": deleted,
        "runner in the repository": new_file("runtests", f"#!/bin/sh\nprintf '{forged}'\n"),
        "shadows a module of the runner": new_file("resource.py", "import os\nos._exit(0)\n"),
        "printed results": appended(bench, task, f"print('{forged}')"),
        "results at exit": appended(
            bench, task, f"import atexit\natexit.register(print, '{forged}')"
        ),
        "results over the parent's output": appended(
            bench,
            task,
            "import os\nfor fd in (1, 2):\n"
            "    with open(f'/proc/{os.getppid()}/fd/{fd}', 'w') as file:\n"
            f"        file.write('{forged}\\n{end}\\n')",
        ),
        "results over the parent's output, runner killed": appended(
            bench, task, over_the_parents_output(whole, kill=1)
        ),
        "the same with the end of the log, shell killed": appended(
            bench, task, over_the_parents_output(whole, kill=2)
        ),
        "the same with an exit status, runner killed": appended(
            bench, task, over_the_parents_output(f">>>>> Test Exit Code: 0\\n{whole}", kill=1)
        ),
        "rewrites the script being run": appended(
            bench,
            task,
            "import os\ntry:\n    with open('/tmp/.verify/eval.sh', 'a') as file:\n"
            f"        file.write('printf \"{forged}\"')\nexcept OSError:\n    pass",
        ),
        "ends the process": appended(bench, task, "import os\nos._exit(0)"),
        "ends the shell": appended(bench, task, "import os\nos.kill(-1, 9)"),
        "does not apply": appended(bench, task, "x = 1").replace("\n ", "\n other", 1),
        "is no patch": "I fixed it.\n",
        "breaks another function": instance.patch + appended(bench, task, "del " + neighbour(task)),
    }
    for name, verdict in bench.verdicts(task, patches).items():
        assert verdict.reward == 0.0, name
        assert verdict.report["resolved"] is False, name


def over_the_parents_output(forged: str, *, kill: int) -> str:
    """Source that writes a whole passing log into the output of runner and shell; ends `kill` of
    its parents, the runner first, then the shell that reads the evaluation script."""
    count = forged.count("PASSED")
    # A failure of no listed test: swebench itself distrusts a bad exit with no failure at all.
    log = f"{forged}\\nFAILED other::test - x\\n{count} passed\\n"
    if kill > 1:
        log += "+ : '>>>>> End Test Output'\\n>>>>> Test Exit Code: 0\\n"
    return (
        "import os\nrunner = os.getppid()\n"
        "shell = int(open(f'/proc/{runner}/stat').read().rpartition(')')[2].split()[1])\n"
        "with open(f'/proc/{shell}/fd/1', 'w') as file:\n"
        f'    file.write("{log}")\n'
        f"for pid in (runner, shell)[:{kill}][::-1]:\n    os.kill(pid, 9)"
    )


def neighbour(task: Task) -> str:
    """A function that PASS_TO_PASS tests, in the module with the bug."""
    patched = task.payload["patch"].split("\n")[0].rpartition("/")[2].removesuffix(".py")
    broken = task.payload["FAIL_TO_PASS"][0].rpartition("_")[0]
    names = [n.rpartition("_")[0] for n in task.payload["PASS_TO_PASS"] if f"test_{patched}" in n]
    return next(n for n in names if n != broken).partition("::test_")[2]


def test_cheating_takes_nothing_from_a_true_solution(bench) -> None:
    task = bench.task()
    instance = bench.environment.instance(task)
    noise = new_file("setup.cfg", "[tool:pytest]\naddopts = -p evil\n")
    both = {"with a conftest": instance.patch + CONFTEST, "with settings": instance.patch + noise}
    verdicts = bench.verdicts(task, both)
    assert [v.reward for v in verdicts.values()] == [1.0, 1.0]
    assert verdicts["with a conftest"].report["ignored_files"] == ["conftest.py"]
    assert verdicts["with settings"].report["ignored_files"] == ["setup.cfg"]


def test_reports_say_why(bench) -> None:
    task = bench.task()
    patches = {
        "the patch does not apply": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "tests fail": "",
        "resolved": bench.environment.instance(task).patch,
    }
    for reason, verdict in bench.verdicts(task, patches).items():
        assert verdict.report["reason"] == reason


def test_endless_code_is_the_agents_zero(bench) -> None:
    task = bench.task()
    verdict = bench.verdicts(task, {"": appended(bench, task, "while True:\n    pass")})[""]
    assert verdict.reward == 0.0
    assert verdict.report["reason"] == "tests fail"
    # A busy machine may stall the tests indeed: only then are they run again.
    seconds, _, cpu_s = verdict.report.get("repeated_after", "20 s with 20 s of CPU").split()[:5:2]
    assert "repeated_after" not in verdict.report or float(cpu_s) < 0.25 * float(seconds)


def test_too_much_memory_and_too_much_time_are_the_agents_zero(bench) -> None:
    task = bench.task()
    hungry = appended(bench, task, "x = bytearray(2 << 30)\nx[::4096] = x[1::4096]")
    assert bench.verdicts(task, {"": hungry})[""].reward == 0.0
    hasty = SweBench(SweBenchConfig(verify_timeout_s=5.0))
    sleepy = Submission(appended(bench, task, "import time\ntime.sleep(15)"))
    verdict = bench.with_provider(lambda provider: hasty.verify(task, sleepy, provider))
    assert verdict.reward == 0.0
    assert verdict.report["reason"].startswith("the tests ran past")
    assert verdict.report["failure"] == "agent_timeout"
    assert verdict.report["repeated_after"].startswith("5 s with 0.")


@pytest.mark.parametrize(
    ("before_the_tests", "kind"), [("exit 3", "exec_transport"), ("sleep 30", "verifier_timeout")]
)
def test_a_verifier_that_never_reaches_its_tests_is_infrastructure(
    bench, before_the_tests: str, kind: str
) -> None:
    record = bench.environment.instance(bench.task()).record()
    script = record["eval_script"].replace("cd /testbed", before_the_tests)
    changed = {"instance_id": f"broken__{kind}", "eval_script": script}
    broken = bench.environment.task(parse_instance(record | changed))
    hasty = SweBench(SweBenchConfig(verify_timeout_s=2.0))
    with pytest.raises(InfrastructureError, match="never reached its tests") as error:
        bench.with_provider(lambda provider: hasty.verify(broken, Submission(""), provider))
    assert error.value.kind == kind


def test_tests_that_never_end_whatever_the_patch_are_infrastructure(bench) -> None:
    record = bench.environment.instance(bench.task()).record()
    script = record["eval_script"].replace("\nruntests ", "\nsleep 60; runtests ")
    changed = {"instance_id": "broken__endless", "eval_script": script}
    broken = bench.environment.task(parse_instance(record | changed))
    hasty = SweBench(SweBenchConfig(verify_timeout_s=2.0))
    pattern = "verifier_timeout: broken__endless: field eval_script: its tests run past"
    for patch in ("", record["patch"]):
        with pytest.raises(InfrastructureError, match=pattern) as error:
            bench.with_provider(
                lambda provider, patch=patch: hasty.verify(broken, Submission(patch), provider)
            )
        assert error.value.kind == "verifier_timeout"


def test_a_hidden_test_patch_that_does_not_apply_is_infrastructure(bench) -> None:
    task = bench.task()
    record = bench.environment.instance(task).record()
    context = next(
        line for line in record["test_patch"].split("\n") if line.startswith("     assert")
    )
    changed = {
        key: record[key].replace(f"\n{context}\n", "\n     assert 1 == 3\n")
        for key in ("test_patch", "eval_script")
    }
    broken = bench.environment.task(
        parse_instance(record | changed | {"instance_id": "broken__test-patch"})
    )
    with pytest.raises(InfrastructureError, match="test_patch does not apply"):
        bench.verdicts(broken, {"": ""})


def test_an_evaluation_script_may_be_longer_than_a_program_argument(bench) -> None:
    instance = bench.environment.instance(bench.task())
    filler = "cat > /dev/null <<'EOF_FILLER'\n" + "line $HOME `true`\n" * 12000 + "EOF_FILLER\n"
    script = instance.eval_script.replace("cd /testbed\n", f"cd /testbed\n{filler}")
    assert len(script) > 200 * 1024
    changed = {"instance_id": "long__script", "eval_script": script}
    task = bench.environment.task(parse_instance(instance.record() | changed))
    verdicts = bench.verdicts(task, {"gold": instance.patch, "nop": ""})
    assert [v.reward for v in verdicts.values()] == [1.0, 0.0]


def test_an_unknown_parser_is_infrastructure(bench) -> None:
    record = bench.environment.instance(bench.task()).record()
    changed = {"instance_id": "broken__parser", "log_parser": "parse_log_nothing"}
    broken = bench.environment.task(parse_instance(record | changed))
    with pytest.raises(InfrastructureError, match="parse_log_nothing"):
        bench.verdicts(broken, {"": ""})


def test_the_agents_sandbox_holds_no_gold(bench) -> None:
    task = bench.task()
    instance = bench.environment.instance(task)
    good = next(x[1:] for x in instance.patch.split("\n") if x[:1] == "+" and x[:2] != "++")
    hidden = [n.partition("::")[2] for n in instance.FAIL_TO_PASS + instance.PASS_TO_PASS]
    hidden = [n for n in hidden if f"def {n}(" not in "".join(instance.files.values())]

    async def look(sandbox: Sandbox) -> str:
        everything = "cat $(git ls-files) /tmp/bin/*; git log -p --all; git fsck --lost-found 2>&1"
        everything += "; git cat-file --batch-all-objects --batch"
        return (await sandbox.exec(everything, timeout_s=20, max_output_bytes=1 << 20)).output

    seen = bench.in_sandbox(task, look)
    assert good.strip() not in seen
    assert not [name for name in hidden if name in seen]
