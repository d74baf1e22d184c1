"""What of a run's log of verbs is learnt again."""

from __future__ import annotations

import json
from pathlib import Path

from harness.relearn import verbs


def write(folder: Path, *names: str) -> Path:
    path = folder / "learner.jsonl"
    path.write_text("".join(json.dumps({"verb": name}) + "\n" for name in names))
    return path


def test_an_update_that_was_never_published_is_left_out(tmp_path):
    """A time budget may end between the step and the publication: the run discarded that update."""
    path = write(tmp_path, "capture", "step", "publish", "capture", "fold", "step")
    assert [v["verb"] for v in verbs(path)] == ["capture", "step", "publish"]
    path = write(tmp_path, "accumulate", "step", "publish", "accumulate")
    assert [v["verb"] for v in verbs(path)] == ["accumulate", "step", "publish"]
