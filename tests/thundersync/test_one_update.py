"""The recorded update of a real policy: what its recording is, and the command on a small one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from harness.protocols import UsageError
from thundersync.one_update import groups_of, recording
from thundersync.script import read_script

SCRIPT = Path(str(resources.files("thundersync.recordings"))) / "smollm2_pypi.toml"
TINYS = Path(__file__).with_name("data") / "recorded.jsonl.gz"


def test_the_recording_is_what_the_script_says() -> None:
    """Two groups of real bug fixes, both with mixed verdicts, each trajectory of 2,000 tokens at
    most, with the policy's own log-probabilities of what was written."""
    groups = groups_of(recording("smollm2_pypi"))
    script = read_script(SCRIPT)
    assert [g.task_id for g in groups] == [task for task, _ in script]
    for group, (_, written) in zip(groups, script, strict=True):
        assert [t.reward for t in group.trajectories] == [w.reward for w in written]
        assert {t.reward for t in group.trajectories} == {0.0, 1.0}
        for trajectory, said in zip(group.trajectories, written, strict=True):
            assert len(trajectory.tokens_T) <= 2000 and trajectory.end == "submit"
            assert len(trajectory.turns) == len(said.actions)
            pairs = zip(trajectory.behaviour_logprobs_T, trajectory.action_mask_T, strict=True)
            assert all((p < 0.0) == bool(m) for p, m in pairs)


def test_a_recording_that_checks_nothing_is_refused() -> None:
    (one, *_), *_ = (g.trajectories for g in groups_of(recording("smollm2_pypi")))
    with pytest.raises(UsageError, match="no group has mixed rewards"):
        groups_of([one])
    with pytest.raises(UsageError, match="recorded=nothing: no such recording"):
        recording("nothing")


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        "learner.packing=padded", "learner.packing=packed", "learner.gradient_checkpointing=true",
        "learner.dtype=bfloat16",
    ],
)  # fmt: skip
def test_streamed_equals_synchronous_and_memory_is_the_formulas(
    tmp_path: Path, setting: str
) -> None:
    ended = subprocess.run(
        [
            sys.executable, "-m", "thundersync.one_update", "policy=tiny", f"recorded={TINYS}",
            "releases=reward,submit", "permutations=4", setting,
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == 0 and found["ok"], found["rows"]
    assert found["tokens"] == 6104 and not list(tmp_path.iterdir())
    for row in found["rows"]:
        assert row["control_relative_error"] > 0 and row["gradient_relative_error"] > 0
    # The first play also loads; of a megabyte-sized policy the interpreter is most of it.
    for play in found["plays"]:
        assert 0.7 * found["expected_bytes"] <= play["peak_bytes"] <= 1.2 * found["expected_bytes"]
