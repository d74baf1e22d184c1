"""Makes the teacher of the tiny policy: the bundled policy, trained by reinforcement learning.

    python -m harness.policy.tiny_teacher_training out=DIR [updates=40] [temperature=0.5]
        [KEY=VALUE ...]
    python -m harness.policy.tiny_teacher_training out=DIR run=RUN [temperature=0.5]

Trains with the main job, on the training split alone (further KEY=VALUE arguments are its own), or
takes a run that has been. The last published weights are sharpened (every logit over `temperature`,
folded into the last norm's scale) and stored as float16, half the bytes, with the policy's
tokenizer: a Hugging Face folder for teacher.path=, and TEACHER.json, which says how it was made and
what it solves of tasks that are in no split and of the held-out split. The latter was measured
once, afterwards; nothing was chosen by it. A stream's rounding depends on the clock, so that
another training gives another teacher, of about the same worth.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import composition, entry
from harness.config import Config, flatten
from harness.policy.load import load_for_training, resolve
from harness.protocols import UsageError

JOB = (
    "schedule=stream", "env=swebench", "policy=tiny", "sandbox=bubblewrap", "tracking=none",
    "evaluation.initial=false", "evaluation.final=false", "budget.kind=updates",
)  # fmt: skip
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
TOLD = ("schedule.", "objective.", "rollout.", "env.", "budget.", "learner.", "seed")


@dataclass(frozen=True)
class Options:
    """`overrides` are those of the job that trains; `run` one that has been."""

    out: Path
    run: Path | None
    temperature: float
    overrides: list[str]


def parse(arguments: Sequence[str]) -> Options:
    """Raises UsageError for a missing folder, a bad number, or settings of a job that is not
    run."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        given[key] = value
    out, run, updates = given.pop("out", ""), given.pop("run", None), given.pop("updates", None)
    temperature = _temperature(given.pop("temperature", "0.5"))
    if not out:
        raise UsageError("out=: where to? give a folder, out=DIR")
    if run is None:
        overrides = [f"budget.limit={updates or 40}", *(f"{k}={v}" for k, v in given.items())]
        return Options(Path(out), None, temperature, overrides)
    if given or updates is not None:
        key = next(iter(given), "updates")
        raise UsageError(f"{key}=: run={run} has been; leave run= out to train another")
    if not list((Path(run) / "checkpoints").glob("weights-*.safetensors")):
        raise UsageError(
            f"run={run}: no checkpoints/weights-*.safetensors there; give a run's folder"
        )
    return Options(Path(out), Path(run), temperature, [])


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise UsageError(f"temperature={text}: take a number above 0 and at most 1")
    return value


def train(folder: Path, overrides: Sequence[str]) -> None:
    """Run the main job into `folder`. Raises UsageError where it does not end well: it has said
    why."""
    command = [sys.executable, "-m", "harness.run", *JOB, *overrides, f"hydra.run.dir={folder}"]
    code = subprocess.run(command, check=False, stdout=sys.stderr).returncode
    if code:
        raise UsageError(f"out={folder.parent}: the training job ended with exit code {code}")


def trained(folder: Path) -> Path:
    """The last published weights of a run."""
    return sorted((folder / "checkpoints").glob("weights-*.safetensors"))[-1]


def export(weights: Path, out: Path, temperature: float) -> None:
    """A Hugging Face folder in float16 of published weights of the bundled policy, sharpened."""
    import torch
    from safetensors.torch import load_file

    model = load_for_training(resolve("tiny"), torch.float32)
    published = load_file(weights)
    missing, unexpected = model.load_state_dict(published, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # tied to the embedding
        raise UsageError(f"run={weights.parent.parent}: its weights are not those of policy=tiny")
    model.base_model.norm.weight.data /= temperature
    model.to(torch.float16).save_pretrained(out)
    for name in TOKENIZER:
        shutil.copy(resolve("tiny") / name, out / name)


def measured(out: Path) -> dict[str, Any]:
    """Solve rates of the teacher and of the policy that it teaches, both sampled at temperature 1
    as they are: on generated tasks (`validation`) and on the held-out split (`eval`)."""
    from harness.policy.warm_start import WarmStart, describe, say, solve_rate

    found: dict[str, Any] = {}
    for name, folder in {"teacher": out, "policy": resolve("tiny")}.items():
        for split in ("validation", "eval"):
            rate = asyncio.run(solve_rate(folder, WarmStart(), split))
            say(f"{name}, {split}: {describe(rate.evaluation)}")
            found.setdefault(name, {})[split] = rate.record()
    return found


def record(options: Options, run: Path, config: Config) -> dict[str, Any]:
    """The content of TEACHER.json."""
    from harness.policy.warm_start import versions

    summary = json.loads((run / "summary.json").read_text("utf-8"))
    weights = (options.out / "model.safetensors").read_bytes()
    trained_on = ("status", "updates", "trajectories", "trajectories_lost", "tokens_trained")
    return {
        "command": "python -m harness.policy.tiny_teacher_training " + " ".join(sys.argv[1:]),
        "start": "tiny",
        "temperature": options.temperature,
        "settings": {k: v for k, v in flatten(config) if k.startswith(TOLD)},
        "training": {key: summary[key] for key in trained_on},
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "weights_bytes": len(weights),
        **measured(options.out),
        "versions": versions(),
    }


def make_from_command_line() -> None:
    """Train unless that has been done, export, measure, write down."""
    options = parse(sys.argv[1:])
    options.out.mkdir(parents=True, exist_ok=True)
    run = options.run or options.out / "run"
    if options.run is None:
        train(run, options.overrides)
    export(trained(run), options.out, options.temperature)
    made = record(options, run, composition.recorded(run))
    text = json.dumps(made, indent=2) + "\n"
    (options.out / "TEACHER.json").write_text(text, encoding="utf-8")
    rates = {name: made[name]["eval"]["solve_rate"] for name in ("teacher", "policy")}
    entry.closing_line({"out": str(options.out), "updates": made["training"]["updates"], **rates})


def main() -> int:
    return entry.guarded(make_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
