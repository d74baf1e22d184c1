"""Real runs beside what virtual time says of them: how good the simulator is on this machine.

    python -m harness.validate_virtual fit=DIR,DIR held_out=DIR,DIR out=FOLDER [cores=N]

Calibrates hardware and workload on the runs of `fit` alone (harness.calibrate), then runs every
run's schedule and budget in virtual time, twice: `trace` with the run's own lives (tokens, tool
calls and verifications as recorded; engine, learner and their overlap are predicted), `drawn` with
lives drawn from the calibrated workload, where nothing of a held-out run is known but its settings.
Writes validation.md and validation.json into FOLDER.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import calibrate, entry
from harness.config import Config
from harness.costs.recording import Recording, read
from harness.hardware import cores, cpu_model
from harness.virtual_jobs import Simulator, made_by, recorded_config

KEYS = ("fit", "held_out", "out", "cores")
LIVES = ("trace", "drawn")
QUANTITIES = ("time.per_update_s", "time.tail_s", "idle.learner", "idle.engine")
# What of a run's configuration decides when things happen, beside the calibrated preset.
SECTIONS = ("schedule", "ledger", "budget")
NO_TIME = ("name", "target", "learning_rate")  # the schedule itself, and what changes no duration


@dataclasses.dataclass(frozen=True)
class Row:
    """One quantity of one run. An idle fraction's error is a difference, a time's is relative."""

    run: str
    held_out: bool
    lives: str
    quantity: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        if self.quantity.startswith("idle"):
            return self.predicted - self.measured
        return self.predicted / self.measured - 1


def configure(
    simulator: Simulator, made: calibrate.Calibration, recording: Recording, lives: str
) -> Config:
    """The same schedule and budget, on the calibrated hardware and with its lives or the run's."""
    recorded = recorded_config(recording.folder)
    config = simulator.config([f"schedule={recording.summary['schedule']}"])
    config.hardware, config.workload = made.hardware, dataclasses.replace(made.workload)
    for key, value in made.rollout.items():
        setattr(config.rollout, key, value)
    for section in SECTIONS:
        for key, value in recorded[section].items():
            if key not in NO_TIME and hasattr(getattr(config, section), key):
                setattr(getattr(config, section), key, value)
    config.seed, config.engine.slots = recorded["seed"], recorded["engine"]["slots"]
    config.sandbox.max_parallel = recorded["sandbox"]["max_parallel"]
    if lives == "trace":  # a start that was recorded has its wait for a place in it already
        config.sandbox.max_parallel = 100000
        config.workload.trace = str(recording.folder / "trajectories.jsonl")
    return config


def _lookup(content: Mapping[str, Any], key: str) -> float:
    found: Any = content
    for part in key.split("."):
        found = found[part]
    return float(found)


def validate(
    recordings: Sequence[Recording], fitted: int, made: calibrate.Calibration, folder: Path
) -> list[Row]:
    """Rows of every run, the first `fitted` of which `made` was fitted to."""
    jobs = [(n, lives) for lives in LIVES for n in range(len(recordings))]
    with Simulator() as simulator:

        def play(job: tuple[int, str]) -> dict[str, Any]:
            number, lives = job
            config = configure(simulator, made, recordings[number], lives)
            found = simulator.run(config, folder / "runs" / f"{number}_{lives}")
            label = recordings[number].label
            print(f"VIRTUAL {label}, {lives} lives: done", file=sys.stderr, flush=True)
            return found

        played = simulator.side_by_side(play, jobs)
    return [
        Row(
            recordings[n].label, n >= fitted, lives, quantity,
            _lookup(recordings[n].summary, quantity), _lookup(summary, quantity),
        )
        for (n, lives), summary in zip(jobs, played, strict=True)
        for quantity in QUANTITIES
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each run and kind of lives, measured and VIRTUAL side by side."""
    heads = " | ".join(f"{q}: measured | VIRTUAL | error" for q in QUANTITIES)
    lines = [
        f"| run | fitted or held out | lives | {heads} |",
        "|---|---|---|" + "---|" * 3 * len(QUANTITIES),
    ]
    for start in range(0, len(rows), len(QUANTITIES)):
        first = rows[start]
        cells = [
            f"{row.measured:.3g} | {row.predicted:.3g} | {_error(row)}"
            for row in rows[start : start + len(QUANTITIES)]
        ]
        held = "held out" if first.held_out else "fitted"
        lines.append(f"| {first.run} | {held} | {first.lives} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _error(row: Row) -> str:
    points = row.quantity.startswith("idle")
    return f"{100 * row.error:+.1f} {'points' if points else '%'}"


def summary_line(rows: Sequence[Row]) -> str:
    """Of held-out runs, how far per_update_s is off in the mean and at worst, for each schedule."""
    lines = []
    for lives in LIVES:
        found: dict[str, list[float]] = {}
        for row in rows:
            if row.held_out and row.lives == lives and row.quantity == QUANTITIES[0]:
                found.setdefault(row.run.rpartition(", seed")[0], []).append(row.error)
        told = "; ".join(
            f"{name} {', '.join(f'{100 * e:+.1f} %' for e in errors)}"
            for name, errors in found.items()
        )
        within = all(abs(e) <= 0.1 for errors in found.values() for e in errors)
        lines.append(
            f"* {lives} lives, held out, time.per_update_s: {told}. "
            f"{'All within 10 %.' if within else 'NOT all within 10 %.'}"
        )
    return "\n".join(lines) + "\n"


def validate_from_command_line() -> None:
    usage = "python -m harness.validate_virtual fit=DIR,DIR held_out=DIR,DIR out=FOLDER"
    given = entry.settings(sys.argv[1:], KEYS, ("fit", "held_out", "out"), usage)
    folder = Path(given["out"]).expanduser().resolve()
    parts = [[Path(p).expanduser() for p in given[k].split(",") if p] for k in ("fit", "held_out")]
    runs = [read(path, number) for number, path in enumerate([*parts[0], *parts[1]])]
    fitted = len(parts[0])
    machine_cores = int(given.get("cores", cores()))
    made = calibrate.calibrate(runs[:fitted], runs[fitted:], machine_cores, cpu_model())
    preset = folder / "experiment" / "calibrated.yaml"
    preset.parent.mkdir(parents=True, exist_ok=True)
    preset.write_text(calibrate.preset(made), encoding="utf-8")
    rows = validate(runs, fitted, made, folder)
    arguments = ["fit=...", "held_out=...", "out=..."]
    text = (
        "# Virtual time against recorded runs\n\n"
        f"{made_by('harness.validate_virtual', arguments)}\n"
        f"Fitted to {'; '.join(r.label for r in runs[:fitted])}, on {made.hardware.label}.\n\n"
        f"{summary_line(rows)}\n{table(rows)}\n"
        f"## The fit itself\n\n```\n{calibrate.table(made.rows)}\n```\n"
    )
    (folder / "validation.md").write_text(text, encoding="utf-8")
    closing = [dataclasses.asdict(row) | {"error": row.error} for row in rows]
    (folder / "validation.json").write_text(json.dumps(closing, indent=1) + "\n", encoding="utf-8")
    print(f"{summary_line(rows)}\n{table(rows)}", file=sys.stderr)
    entry.closing_line(closing)


def main() -> int:
    return entry.guarded(validate_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
