"""A wrong setting: one line that names key, value and way out, exit code 2, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from environments.swebench.mini.dataset import MiniSource
from harness.composition import compose
from harness.protocols import UsageError
from harness.validation import validate

MINI = MiniSource()


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.run", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("rollout.group_sze=4", ("rollout.group_sze", "did you mean rollout.group_size?")),
        ("+foo=3", ("foo: no such key",)),
        ("env.split_name=x", ("env.split_name: no such key",)),
        ("env=swebnch", ("env=swebnch", "there is: simulated, swebench, swebench_virtual")),
        ("schedule=asink", ("schedule=asink", "there is: async, async_4, async_8, one_step_off")),
        ("experiment=compare_small schedule=one_step_off", ("has settings for sync, async, str",)),
        ("-m launcher=slurm", ("hydra/launcher=submitit_slurm: the launcher's plugin is not ins",)),
        ("rollout.group_size=many", ("rollout.group_size=many", "Integer")),
        ("rollout.group_size=1", ("rollout.group_size=1", "groups of 2 or more")),
        ("policy.path=/no/such/policy", ("policy=/no/such/policy", "a folder with a config.json")),
        ("replay=[", ("[",)),
        ("seed", ("seed",)),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    argument: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    ended = _run(tmp_path, *argument.split())
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    for part in expected:
        assert part in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_is_not_trained_on_by_accident(tmp_path: Path) -> None:
    records = [instance.record() | {"split": "test"} for instance in MINI.instances("eval")[:10]]
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    ended = _run(tmp_path, "env=swebench", f"env.dataset={data}", "tracking=none")
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "env.split='train'" in line and "env.train_on_evaluation=true" in line
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.rglob("summary.json"))
    assert summary["status"] == "failed" and summary["trains_on_evaluation"] is False


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("sed=3", 2)])
def test_an_answer_imports_nothing_that_takes_seconds(
    argument: str, code: int, tmp_path: Path
) -> None:
    """What is left is Hydra's own time, which a machine and its version decide."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness.run", argument],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == code
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}
    assert {"hydra", "omegaconf", "harness"} <= imported
    slow = {"torch", "transformers", "numpy", "pandas", "scipy", "mlflow", "docker", "swebench"}
    assert not imported & (slow | {"ray", "vllm", "matplotlib", "tokenizers", "safetensors"})


def test_a_sweep_with_a_misspelt_option_starts_no_job(tmp_path: Path) -> None:
    ended = _run(tmp_path, "-m", "schedule=sync,asinc", "tracking=none")
    assert ended.returncode == 2
    there = (
        "async, async_4, async_8, one_step_off, stream, stream_group, stream_submit, stream_turn, "
        "sync, sync_colocated"
    )
    assert f"schedule=asinc: no such option; there is: {there}" in ended.stderr
    assert not list(tmp_path.rglob("summary.json"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("schedule.release=soon", "schedule.release=soon: not available; there is: null, batch"),
        ("schedule.learning_rate=-1", "schedule.learning_rate=-1.0: out of range"),
        ("learner.beta1=1.5", "at least 0 and at most 1"),
        ("budget.limit=0", "budget.limit=0.0: out of range; it must be above 0"),
        ("budget.limit=inf", "budget.limit=inf: out of range"),
        ("budget.kind=update", "did you mean updates?"),
        ("rollout.max_new_tokens=640", "rollout.max_context_tokens=640"),
        ("schedule.max_staleness=2", "schedule.max_staleness=2"),
        ("schedule.target=no.such:Thing", "schedule.target=no.such:Thing: cannot be imported"),
        ("ledger.target=thundersync.ledger", "write package.module:Name"),
        ("sandbox.verify_parallel=0", "sandbox.verify_parallel=0: out of range"),
        ("sandbox.time_to_live_s=0", "sandbox.time_to_live_s=0.0: out of range"),
        ("sandbox.hosts=[ssh://box]", "ssh://box is no address of a Docker engine"),
        ("sandbox.hosts=[tcp://a:1,tcp://a:1]", "is there twice"),
        ("sandbox.host_parallel=[8]", "each of the 0 sandbox.hosts"),
        ("sandbox.mirrors=[pypi.org:10.0.0.5]", "pypi.org:10.0.0.5 is not NAME:PORT:ADDRESS"),
        ("replay=missing.jsonl", "replay=missing.jsonl: no such file"),
    ],
)
def test_impossible_values_name_the_key_and_the_way_out(override: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate(compose([override]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sync_takes_no_other_rung() -> None:
    with pytest.raises(UsageError, match="schedule=sync releases batch"):
        validate(compose(["schedule=sync", "schedule.release=reward"]))


@pytest.mark.parametrize("schedule", ["sync", "stream"])
@pytest.mark.parametrize("extra", [[], ["experiment=smoke"], ["tracking=none"]])
def test_what_is_offered_is_valid(schedule: str, extra: list[str]) -> None:
    config = compose([f"schedule={schedule}", *extra])
    validate(config)
    assert config.schedule.name == schedule
