"""Real runs beside what virtual time says of them: how good the simulator is on this machine.

    python -m harness.validate_virtual fit=DIR,DIR held_out=DIR,DIR out=FOLDER [cores=N]

Calibrates hardware and workload on the runs of `fit` alone (harness.calibrate), then makes as many
updates as every run made, by its schedule, in virtual time, twice: `trace` with the run's own lives
(tokens, tool calls and verifications as recorded; engine, learner and their overlap are predicted),
`drawn` with lives drawn from the calibrated workload, where nothing of a held-out run is known but
its settings. Writes validation.md and validation.json into FOLDER.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import calibrate, entry
from harness.costs.recording import Recording, read
from harness.hardware import cores, cpu_model
from harness.recorded_runs import QUANTITIES, configure, observed
from harness.virtual_jobs import Simulator, made_by

KEYS = ("fit", "held_out", "out", "cores")
LIVES = ("trace", "drawn")
WITHIN = 0.1  # what was asked of update times


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


def validate(
    recordings: Sequence[Recording],
    fitted: int,
    made: calibrate.Calibration,
    simulator: Simulator,
    folder: Path,
) -> list[Row]:
    """Rows of every run, the first `fitted` of which `made` was fitted to."""
    measured = [observed(r.folder, r.summary["updates"]) for r in recordings]
    jobs = [(n, lives) for lives in LIVES for n in range(len(recordings))]

    def play(job: tuple[int, str]) -> dict[str, float]:
        number, lives = job
        recording, out = recordings[number], folder / "runs" / f"{number}_{lives}"
        simulator.run(configure(simulator, made, recording, lives), out)
        print(f"VIRTUAL {recording.label}, {lives} lives: done", file=sys.stderr, flush=True)
        return observed(out, recording.summary["updates"])

    played = simulator.side_by_side(play, jobs)
    return [
        Row(
            recordings[n].label, n >= fitted, lives, quantity,
            measured[n][quantity], predicted[quantity],
        )
        for (n, lives), predicted in zip(jobs, played, strict=True)
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
    """Of held-out runs, how far time.per_update_s is off: each schedule's mean over its runs, and
    every run."""
    lines = []
    for lives in LIVES:
        found: dict[str, list[Row]] = {}
        for row in rows:
            if row.held_out and row.lives == lives and row.quantity == QUANTITIES[0]:
                found.setdefault(row.run.rpartition(", seed")[0], []).append(row)
        means = {name: _mean_error(runs) for name, runs in found.items()}
        told = "; ".join(
            f"{name} {100 * means[name]:+.1f} % ({', '.join(_error(run) for run in runs)})"
            for name, runs in found.items()
        )
        errors = [abs(run.error) for runs in found.values() for run in runs]
        near = sum(error <= WITHIN for error in errors)
        every = all(abs(error) <= WITHIN for error in means.values())
        lines.append(
            f"* {lives} lives, held out, time.per_update_s of a schedule (of each run): {told}. "
            f"{'Every schedule' if every else 'NOT every schedule'} within 10 %; "
            f"{near} of {len(errors)} runs."
        )
    return "\n".join(lines) + "\n"


def _mean_error(runs: Sequence[Row]) -> float:
    return sum(run.predicted for run in runs) / sum(run.measured for run in runs) - 1


def validate_from_command_line() -> None:
    usage = "python -m harness.validate_virtual fit=DIR,DIR held_out=DIR,DIR out=FOLDER"
    given = entry.settings(sys.argv[1:], KEYS, ("fit", "held_out", "out"), usage)
    folder = Path(given["out"]).expanduser().resolve()
    parts = [[Path(p).expanduser() for p in given[k].split(",") if p] for k in ("fit", "held_out")]
    runs = [read(path, number) for number, path in enumerate([*parts[0], *parts[1]])]
    fitted = len(parts[0])
    machine_cores = int(given.get("cores", cores()))
    with Simulator() as simulator:
        made = calibrate.calibrate(
            runs[:fitted], runs[fitted:], machine_cores, cpu_model(), simulator, folder / "fits"
        )
        preset = folder / "experiment" / "calibrated.yaml"
        preset.parent.mkdir(parents=True, exist_ok=True)
        preset.write_text(calibrate.preset(made), encoding="utf-8")
        rows = validate(runs, fitted, made, simulator, folder)
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
