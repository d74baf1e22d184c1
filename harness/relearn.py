"""A run's learning once more, from its records alone: are the weights the same bits?

    python -m harness.relearn run=FOLDER [clock=wall|virtual] [hardware=NAME]

Plays the run's learner.jsonl (every verb with its trajectories, in order) on a fresh learner, with
the tokens of trajectories.jsonl, and compares every update's gradient norm and the last published
weights. On the machine and versions of the run they must be identical; exit 1 where they are not.
clock=virtual plays them on the learner of virtual time, in what verbs would take `hardware` (a wall
run needs one; that of a virtual run is its own).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from environments.sandbox.ownership import folder_prefix
from harness import composition, entry
from harness.config import Config
from harness.costs.select import cost_model
from harness.interrupt import run_async, run_virtual
from harness.learner.client import TorchLearnerClient
from harness.parts import learner_options, learner_threads
from harness.policy.load import resolve
from harness.protocols import FoldSpec, Learner, Trajectory, UsageError
from harness.trajectory_lines import read
from harness.virtual import VirtualClock


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# What every verb's line holds besides its name (harness/learner/log.py).
_ARGUMENTS = {
    "accumulate": ("ids", "coefficients"),
    "capture": ("ids", "rewards"),
    "turns": ("settings",),
    "extend": ("id", "tokens"),
    "abandon": ("ids",),
    "commit": ("id", "reward"),
    "discard": ("ids",),
    "fold": ("group", "coefficients"),
    "drop": ("group",),
    "step": ("normaliser", "gradient_norm"),
    "publish": ("version",),
}


def _verb(text: str) -> dict[str, Any]:
    """Raises ValueError for a line that is no verb."""
    verb = json.loads(text)
    if not isinstance(verb, dict) or str(verb.get("verb")) not in _ARGUMENTS:
        raise ValueError("no verb")
    missing = [name for name in _ARGUMENTS[verb["verb"]] if name not in verb]
    if missing:
        raise ValueError(f"{verb['verb']} without {', '.join(missing)}")
    return verb


def verbs(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a learner.jsonl; what follows the last publication (an update that a time budget
    cut short, be it after its step, or a last line that a crash cut) is left out. Raises UsageError
    for any other line that is no verb."""
    held: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith("\n"):
                return
            try:
                held.append(_verb(text))
            except ValueError as error:
                raise UsageError(
                    f"run={path.parent}: line {number} of {path.name} cannot be played ({error}); "
                    "take a run of this version"
                ) from error
            if held[-1]["verb"] == "publish":
                yield from held
                held = []


def _of(known: dict[str, Trajectory], ids: list[str]) -> list[Trajectory]:
    missing = [i for i in ids if i not in known]
    if missing:
        raise UsageError(
            f"trajectories.jsonl: {missing[0]} is learnt from and not in it; "
            "both records must be of one run, and whole"
        )
    return [known[i] for i in ids]


async def play(
    learner: Learner, verb: dict[str, Any], known: dict[str, Trajectory]
) -> float | None:
    """Carry one verb out; a step returns its gradient norm."""
    name = verb["verb"]
    if name == "accumulate":
        await learner.accumulate(_of(known, verb["ids"]), verb["coefficients"])
    elif name == "capture":
        rewarded = zip(_of(known, verb["ids"]), verb["rewards"], strict=True)
        await learner.capture([replace(t, reward=reward) for t, reward in rewarded])
    elif name == "extend":
        (trajectory,) = _of(known, [verb["id"]])
        if trajectory.teacher is not None:  # as much of it as there was
            scored = trajectory.teacher.cut(0, verb.get("scored", 0))
            trajectory = replace(trajectory, teacher=scored)
        await learner.extend({0: (trajectory, verb["tokens"])})
    elif name == "abandon":
        await learner.abandon(verb["ids"])
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


async def relearn(
    folder: Path, config: Config, clock: VirtualClock | None = None
) -> dict[str, Any]:
    """Play a whole run, under the virtual `clock` where there is one; the result is ready for
    JSON."""
    known = {t.trajectory_id: t for t, _ in read(folder / "trajectories.jsonl")}
    policy = resolve(config.policy.path or config.policy.name)
    updates, first, took_s = 0, None, None
    recorded_verbs = list(verbs(folder / "learner.jsonl"))
    options = learner_options(config, policy, Path())
    for verb in recorded_verbs:
        if verb["verb"] == "turns" and options["turns"] is not None:
            options["turns"] = replace(options["turns"], **verb["settings"])
    with tempfile.TemporaryDirectory(prefix=folder_prefix("relearn")) as scratch:
        options |= {"publish_folder": scratch}
        async with _learner(config, clock, options) as learner:
            for verb in recorded_verbs:
                norm = await play(learner, verb, known)
                if norm is not None:
                    updates += 1
                    if norm != verb["gradient_norm"] and first is None:
                        first = updates
            if clock is not None:
                took_s = clock.now()
            path, _ = await learner.publish()
            replayed = sha256(Path(path))
    recorded = [sha256(p) for p in sorted((folder / "checkpoints").glob("weights-*.safetensors"))]
    return {
        "run": str(folder),
        "clock": "wall" if clock is None else "virtual",
        "hardware": None if clock is None else f"VIRTUAL {cost_model(config).label}",
        "learner_virtual_s": took_s,
        "updates": updates,
        "first_different_update": first,
        "weights_sha256": replayed,
        "recorded_weights_sha256": recorded[-1] if recorded else None,
        "bit_identical": first is None and recorded[-1:] == [replayed],
    }


@contextlib.asynccontextmanager
async def _learner(
    config: Config, clock: VirtualClock | None, options: dict[str, Any]
) -> AsyncIterator[Learner]:
    """A fresh one, in a process of its own or under the virtual clock; it is ended on the way
    out."""
    if clock is None:
        client = TorchLearnerClient(options, learner_threads(config))
        try:
            await client.start()
            yield client
        finally:
            await client.close()
        return
    from harness.charged.again import recorded_learner
    from harness.charged.workshop import Workshop

    workshop = Workshop()
    try:
        yield recorded_learner(config, clock, workshop, options, learner_threads(config))
    finally:
        workshop.close()


def relearn_from_command_line() -> None:
    given = {"clock": "wall"} | entry.settings(
        sys.argv[1:], ("run", "clock", "hardware"), ("run",), "python -m harness.relearn run=FOLDER"
    )
    folder = Path(given["run"])
    if not (folder / "learner.jsonl").is_file():
        raise UsageError(f"run={folder}: give the folder of a finished run, with its learner.jsonl")
    config, clock = composition.recorded(folder), None
    if given["clock"] not in ("wall", "virtual"):
        raise UsageError(f"clock={given['clock']}: not available; there is: wall, virtual")
    if given["clock"] == "virtual":
        clock = VirtualClock()
        if "hardware" in given:
            config.hardware = composition.compose([f"hardware={given['hardware']}"]).hardware
        result = run_virtual(clock, relearn(folder, config, clock))
    elif "hardware" in given:
        raise UsageError(f"hardware={given['hardware']}: what is charged for; take clock=virtual")
    else:
        result = run_async(relearn(folder, config))
    entry.closing_line(result)
    if not result["bit_identical"]:
        raise SystemExit(1)


def main() -> int:
    return entry.guarded(relearn_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
