"""Attacks on the reward score 0 and are recorded; an honest solution under attack still scores 1;
a judgement that nobody can read is no reward at all."""

from __future__ import annotations

import shlex

import pytest

from environments.protocols import InfrastructureError
from environments.terminal_bench.config import TerminalBenchConfig
from environments.terminal_bench.dataset import MINI_TASKS

SOLVED = "echo 42 > answer"
TEST_SH = """\
#!/bin/bash
if [ "$(cat /app/answer 2>/dev/null)" = 42 ]; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
"""
# Tests that end nothing themselves, and give a writer its time.
LENIENT = TEST_SH + "sleep 0.1\n"
FORGE = "echo 1 > /logs/verifier/reward.txt"


def program(text: str) -> str:
    """The command that leaves a program for the tests to run."""
    return f"cat > /app/program <<'EOF_PROGRAM'\n{text}\nEOF_PROGRAM"


def test_the_tests_decide(bench, make_task) -> None:
    path = make_task()
    solved, nothing = bench.judge(path, [SOLVED]), bench.judge(path, [])
    assert (solved.reward, nothing.reward) == (1.0, 0.0)
    assert solved.report["reason"] == "judged"
    assert solved.report["exit_code"] == 0
    assert "integrity" not in solved.report


# Left in the machine before the tests come: cleared away, so that it neither helps nor hurts.
PLANTED = {
    "reward file": FORGE,
    "reward.json": """echo '{"reward": 1}' > /logs/verifier/reward.json""",
    "link": "ln -s /app/mine /logs/verifier/reward.txt; echo 1 > mine",
    "dangling link": "ln -s /app/nothing /logs/verifier/reward.txt",
    "folder": "mkdir -p /logs/verifier/reward.txt/x",
    "pipe": "mkfifo /logs/verifier/reward.txt",
    "locked": f"{FORGE}; cd /logs/verifier; mkdir d; touch d/x; chmod 0 *",
    "odd names": "cd /logs/verifier; touch $'a\\nb' ./-x '*' '$(kill 1)' /tests/.hidden",
    "tests": f"echo '{FORGE}; exit' > /tests/test.sh; chmod 0 /tests/test.sh",
    "test folder": "mkdir /tests/test.sh",
    "link to elsewhere": "ln -s /app/mine /tests/test.sh; echo untouched > mine",
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_gone_and_recorded(bench, make_task, name: str) -> None:
    path = make_task()
    forged = bench.judge(path, [PLANTED[name]])
    honest = bench.judge(path, [SOLVED, PLANTED[name]])
    assert (forged.reward, honest.reward) == (0.0, 1.0)
    for verdict in (forged, honest):
        where = "tests" if name in ("tests", "test folder", "link to elsewhere") else "reward"
        assert f"planted_{where}" in verdict.report["integrity"]
        assert verdict.report["planted"][0].startswith(("/tests/", "/logs/verifier/"))


# Processes that outlive the agent: ended before the tests come.
WRITERS = {
    "plain": f"while :; do {FORGE}; done",
    "deaf": f"trap '' TERM HUP INT; while :; do {FORGE}; sleep 0.001; done",
    "forking": f"f() {{ {FORGE}; sleep 0.01; f & }}; f",
    "of zeros": "while :; do echo 0 > /logs/verifier/reward.txt; done",
    "of the tests": f"while :; do echo '{FORGE}; exit' > /tests/test.sh; done",
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_background_writer_is_ended_first(bench, make_task, name: str) -> None:
    path = make_task(test=LENIENT)
    writer = f"setsid nohup bash -c {shlex.quote(WRITERS[name])} >/dev/null 2>&1 &"
    assert bench.judge(path, [writer, "sleep 0.2"]).reward == 0.0
    assert bench.judge(path, [SOLVED, writer, "sleep 0.2"]).reward == 1.0


@pytest.mark.alone
def test_a_fork_bomb_does_not_keep_the_tests_out(bench, make_task) -> None:
    path = make_task()
    bomb = "setsid bash -c 'f() { f & f & sleep 100; }; f' >/dev/null 2>&1 &"
    config = TerminalBenchConfig(pids=48)
    assert bench.judge(path, [SOLVED, bomb, "sleep 0.3"], config).reward == 1.0


# Programs of the agent's that the tests run.
PROGRAMS = {
    "writes the reward": FORGE,
    "a daemon writes the reward": f"setsid bash -c 'while :; do {FORGE}; done' >/dev/null 2>&1 &",
    "a link for the reward": "ln -s /app/mine /logs/verifier/reward.txt",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_the_tests_run_gets_no_reward(bench, make_task, name: str) -> None:
    path = make_task()
    verdict = bench.judge(path, [program(PROGRAMS[name])])
    assert verdict.reward == 0.0


@pytest.mark.parametrize(
    "text",
    [
        f"{FORGE}; kill -KILL -1",
        f"{FORGE}; for p in /proc/[0-9]*; do kill -KILL ${{p#/proc/}}; done",
    ],
)
def test_killed_tests_are_a_zero_and_recorded(bench, make_task, text: str) -> None:
    verdict = bench.judge(make_task(), [SOLVED, program(text)])
    assert verdict.reward == 0.0
    assert verdict.report["integrity"] == ["killed_tests"]


def test_tests_edited_while_they_run_are_a_zero_and_recorded(bench, make_task) -> None:
    edit = "printf 'echo 1 > /logs/verifier/reward.txt\\nexit 0\\n' > /tests/test.sh"
    verdict = bench.judge(make_task(), [program(edit)])
    assert verdict.reward == 0.0
    assert verdict.report["integrity"] == ["changed_tests"]


def test_a_reward_that_is_no_regular_file_is_a_zero_and_recorded(bench, make_task) -> None:
    for command in ("ln -s /app/mine", "mkfifo", "mkdir"):
        test = f"#!/bin/bash\necho 1 > /app/mine\n{command} /logs/verifier/reward.txt\n"
        verdict = bench.judge(make_task(test=test), [SOLVED])
        assert verdict.reward == 0.0, command
        assert verdict.report["integrity"] == ["forged_reward"]


@pytest.mark.docker
def test_a_machine_that_the_agent_has_ruined_is_a_zero(docker_bench, make_task) -> None:
    inside_tmp = "FROM thundersync/mini:1\nUSER agent\nRUN mkdir -p /tmp/app\nWORKDIR /tmp/app\n"
    path = make_task(dockerfile=inside_tmp)
    verdict = docker_bench.judge(path, ["rm -rf /tmp/app && ln -s /nowhere /tmp/app"])
    assert verdict.reward == 0.0
    assert verdict.report["reason"] == "the agent left its machine unusable"


def test_too_much_memory_in_the_tests_is_a_zero(bench, make_task) -> None:
    hungry = "python3 -c 'x = bytearray(1 << 29)[::4096]; y = bytearray(b\"1\" * (1 << 29))'"
    verdict = bench.judge(make_task(), [program(hungry)])
    assert verdict.reward == 0.0
    assert "integrity" not in verdict.report


@pytest.mark.parametrize(
    ("test", "kind", "words"),
    [
        ("exit 0\n", "parser", "no reward file"),
        ("echo sad; exit 3\n", "parser", "ended with 3: no reward file; it said: 'sad'"),
        (": > /logs/verifier/reward.txt\n", "parser", "reward.txt is empty"),
        ("echo nan > /logs/verifier/reward.txt\n", "parser", "not finite"),
        ("echo yes > /logs/verifier/reward.txt\n", "parser", "not one number"),
        ("sleep 100\n", "verifier_timeout", "verifier.timeout_sec = 1"),
    ],
)
def test_an_unreadable_judgement_is_infrastructure(
    bench, make_task, test: str, kind: str, words: str
) -> None:
    toml = (
        'schema_version = "1.4"\n[verifier]\ntimeout_sec = 1\n'
        '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 128\nstorage_mb = 32\n'
    )
    with pytest.raises(InfrastructureError) as caught:
        bench.judge(make_task("broken", toml=toml, test=f"#!/bin/bash\n{test}"), [SOLVED])
    assert caught.value.kind == kind
    assert "broken: tests/test.sh" in str(caught.value)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_verification_can_be_repeated_on_the_same_machine(bench, make_task) -> None:
    environment, task = bench.environment_of(make_task())

    async def twice(provider):
        sandbox = await provider.start(environment.sandbox_spec(task))
        try:
            await environment.prepare(task, sandbox)
            await sandbox.exec(SOLVED, timeout_s=20)
            submission = await environment.collect(task, sandbox)
            return [await environment.verify(task, submission, provider) for _ in range(2)]
        finally:
            await sandbox.stop()

    assert [verdict.reward for verdict in bench.with_provider(twice)] == [1.0, 1.0]


def test_the_agent_sees_neither_tests_nor_solution(bench, make_task) -> None:
    path = make_task(files={"tests/secret.txt": "needle-17"})
    environment, task = bench.environment_of(path)

    async def look(sandbox):
        command = "grep -rs needle-17 /app /tests /solution /logs /tmp; ls -A /tests /solution"
        return (await sandbox.exec(command, timeout_s=20)).output

    assert "needle" not in (seen := bench.in_sandbox(environment, task, look))
    assert seen.split() == ["/solution:", "/tests:"]


def test_the_verifier_has_its_variables_and_the_format_s_places(bench, make_task) -> None:
    toml = (
        'schema_version = "1.4"\n[verifier]\nenv = { WANTED = "a b\'c" }\n'
        '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 128\nstorage_mb = 32\n'
    )
    test = (
        '#!/bin/bash\n[ "$WANTED" = "a b\'c" ] && [ "$0" = /tests/test.sh ] && [ "$PWD" = /app ] '
        '&& "$(dirname "$0")/helper" && echo 1 > /logs/verifier/reward.txt\n'
    )
    path = make_task(toml=toml, test=test, files={"tests/helper": "#!/bin/sh\ntest -d /solution\n"})
    assert bench.judge(path, []).reward == 1.0


def test_processes_stay_where_a_data_set_needs_them(bench, make_task) -> None:
    test = (
        "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/8000 && reward=1 || reward=0\n"
        'echo "$reward" > /logs/verifier/reward.txt\n'
    )
    path = make_task(test=test)
    serve = "setsid python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 &"
    wait = "for i in $(seq 50); do (exec 3<>/dev/tcp/127.0.0.1/8000) && exit; sleep 0.1; done"
    kept = TerminalBenchConfig(agent_processes="keep")
    assert bench.judge(path, [serve, wait], kept).reward == 1.0
    assert bench.judge(path, [serve, wait]).reward == 0.0
    forge = f"setsid bash -c 'sleep 1; {FORGE}' >/dev/null 2>&1 &"
    assert bench.judge(make_task("other"), [forge], kept).reward == 0.0


# Where programs look for settings, start-up code and modules before they look into the system.
START_UP = """\
mkdir -p bin ~/.local/bin ~/.config/git $(python3 -m site --user-site)
evil='import os; open("/logs/verifier/reward.txt", "w").write("1"); os._exit(0)'
for name in usercustomize sitecustomize json unittest sqlite3; do
  echo "$evil" | tee $name.py ~/$name.py > $(python3 -m site --user-site)/$name.py
done
echo "$evil" > $(python3 -m site --user-site)/x.pth
printf '#!/bin/sh\\nexit 0\\n' | tee bin/python3 ~/.local/bin/python3 > python3
chmod +x bin/python3 ~/.local/bin/python3 python3
echo 'echo 1 > /logs/verifier/reward.txt; exit 0' | tee ~/.bashrc ~/.bash_profile > ~/.profile
export BASH_ENV=~/.bashrc PATH=/app/bin:$PATH PYTHONPATH=/app PYTHONSTARTUP=/app/json.py
python3() { exit 0; }; export -f python3; alias cd=true
hash -p /app/bin/python3 python3
"""


@pytest.mark.parametrize("name", ["eval/sales-report", "eval/orders-db", "train/fix-head-cards"])
def test_start_up_code_and_shadows_do_not_reach_the_bundled_tests(bench, name: str) -> None:
    path = MINI_TASKS / name
    environment, task = bench.environment_of(path)
    assert bench.judge(path, [START_UP]).reward == 0.0
    assert bench.judge(path, [*environment.oracle_commands(task), START_UP]).reward == 1.0


def test_system_programs_and_the_clock_cannot_be_changed(bench, make_task) -> None:
    replace = "for p in /bin/bash /usr/bin/bash /usr/bin/find /bin/cat; do echo x > $p; done"
    clock = "date -s 2001-01-01; hwclock --set --date 2001-01-01"
    root = "rm -rf /bin /usr /etc /run/python; mv /tests /x; umount /tests; mount -t tmpfs x /tests"
    path = make_task(test=TEST_SH.replace("reward=1", "reward=$(( $(date +%Y) > 2020 ))"))
    assert bench.judge(path, [SOLVED, replace, clock, root]).reward == 1.0
