"""A run's learning once more, from its records alone: are the weights the same bits?

    python -m harness.relearn run=FOLDER

Plays the run's learner.jsonl (every verb with its trajectories, in order) on a fresh learner, with
the tokens of trajectories.jsonl, and compares every update's gradient norm and the last published
weights. On the machine and versions of the run they must be identical; exit 1 where they are not.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import composition, entry
from harness.config import Config
from harness.interrupt import run_async
from harness.learner.client import TorchLearnerClient
from harness.parts import learner_options
from harness.policy.load import resolve
from harness.protocols import FoldSpec, Learner, Trajectory, UsageError
from harness.trajectory_lines import read


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verbs(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a learner.jsonl; what follows the last publication (an update that a time budget
    cut short, be it after its step) is left out."""
    held: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            held.append(json.loads(line))
            if held[-1]["verb"] == "publish":
                yield from held
                held = []


async def play(
    learner: Learner, verb: dict[str, Any], known: dict[str, Trajectory]
) -> float | None:
    """Carry one verb out; a step returns its gradient norm."""
    name = verb["verb"]
    if name == "accumulate":
        await learner.accumulate([known[i] for i in verb["ids"]], verb["coefficients"])
    elif name == "capture":
        rewards = zip(verb["ids"], verb["rewards"], strict=True)
        await learner.capture([replace(known[i], reward=reward) for i, reward in rewards])
    elif name == "commit":
        await learner.commit(verb["id"], verb["reward"])
    elif name == "discard":
        await learner.discard(verb["ids"])
    elif name == "fold":
        coefficients = {k: (r, a) for k, (r, a) in verb["coefficients"].items()}
        await learner.fold(FoldSpec(verb["group"], coefficients))
    elif name == "drop":
        await learner.drop(verb["group"])
    elif name == "step":
        return (await learner.step(verb["normaliser"])).gradient_norm
    return None


async def relearn(folder: Path, config: Config) -> dict[str, Any]:
    """Play a whole run; the result is ready for JSON."""
    known = {t.trajectory_id: t for t, _ in read(folder / "trajectories.jsonl")}
    policy = resolve(config.policy.path or config.policy.name)
    updates, first = 0, None
    with tempfile.TemporaryDirectory(prefix="thundersync-") as scratch:
        learner = TorchLearnerClient(
            learner_options(config, policy, Path(scratch)), config.schedule.learner_devices
        )
        try:
            await learner.start()
            for verb in verbs(folder / "learner.jsonl"):
                norm = await play(learner, verb, known)
                if norm is not None:
                    updates += 1
                    if norm != verb["gradient_norm"] and first is None:
                        first = updates
            path, _ = await learner.publish()
            replayed = sha256(Path(path))
        finally:
            await learner.close()
    recorded = [sha256(p) for p in sorted((folder / "checkpoints").glob("weights-*.safetensors"))]
    return {
        "run": str(folder),
        "updates": updates,
        "first_different_update": first,
        "weights_sha256": replayed,
        "recorded_weights_sha256": recorded[-1] if recorded else None,
        "bit_identical": first is None and recorded[-1:] == [replayed],
    }


def relearn_from_command_line() -> None:
    key, _, value = (sys.argv[1] if len(sys.argv) == 2 else "").partition("=")
    folder = Path(value)
    if key != "run" or not (folder / "learner.jsonl").is_file():
        raise UsageError(f"run={value}: give the folder of a finished run, with its learner.jsonl")
    result = run_async(relearn(folder, composition.recorded(folder)))
    entry.closing_line(result)
    if not result["bit_identical"]:
        raise SystemExit(1)


def main() -> int:
    return entry.guarded(relearn_from_command_line)


if __name__ == "__main__":
    sys.exit(main())
