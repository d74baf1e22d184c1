"""Fit a workload and a machine's costs to recorded runs, and say how far off the fit is.

    python -m harness.calibrate runs=DIR,DIR out=FOLDER/experiment/NAME.yaml [held_out=DIR,DIR]

The file that it writes is a preset: `python -m harness.run --config-dir FOLDER experiment=NAME
env=simulated schedule=...` runs under its workload and hardware. The table has a row for each
quantity of each run: measured, predicted from the fit, and the relative error; runs of `held_out`
were not fitted and are marked so.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness import entry
from harness.costs import cpu_preset, fit_hardware, fit_workload
from harness.costs.recording import Recording, read
from harness.hardware import cores, cpu_model
from harness.protocols import UsageError
from harness.recorded_runs import Preset, update_errors
from harness.virtual_jobs import Simulator

KEYS = ("runs", "out", "held_out", "cores")
SIMULATED = 8  # fits


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    run: str
    held_out: bool
    quantity: str
    measured: float
    predicted: float

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None where nothing was measured."""
        return self.predicted / self.measured - 1 if self.measured else None


@dataclass(frozen=True)
class Calibration(Preset):
    """What was fitted, and how far it is from every run."""

    rows: list[Row]


def calibrate(
    runs: Sequence[Recording],
    held_out: Sequence[Recording],
    machine_cores: int,
    machine: str,
    simulator: Simulator,
    folder: Path,
) -> Calibration:
    """Fit to `runs` alone; of the fits whose totals come out best, the one that does best together
    with its simulated update times, played in `folder`. Raises UsageError for runs that cannot be
    fitted together."""
    settings = {(r.settings.policy, r.settings.limits) for r in [*runs, *held_out]}
    if len(settings) > 1:
        raise UsageError(
            "runs: their policies or rollout limits differ; one fit needs runs of one policy under "
            "one rollout.max_turns, rollout.max_new_tokens and rollout.max_context_tokens"
        )
    first = runs[0].settings
    measured = f"measured: harness.calibrate, {len(runs)} runs ({'; '.join(r.label for r in runs)})"
    label = f"simulated {machine_cores}-core {machine}"
    lives = [life for run in runs for life in run.lives]
    workload = fit_workload.fit(lives, first.limits, measured)
    drawn = fit_workload.summary(fit_workload.drawn_lives(workload, first.limits))
    rollout = {
        **dataclasses.asdict(first.limits),
        "groups_per_batch": first.groups_per_batch,
        "group_size": first.group_size,
        "time_limit_s": first.time_limit_s,
    }
    fits = fit_hardware.fits(runs, machine_cores)[:SIMULATED]
    presets = [
        Preset(cpu_preset.preset(costs, first.policy, label, measured), workload, rollout)
        for costs in fits
    ]
    errors = update_errors(simulator, presets, runs, folder)
    best = min(range(len(fits)), key=lambda i: fits[i].error + errors[i])
    rows = [
        row
        for run in [*runs, *held_out]
        for row in _rows(run, run in held_out, fits[best], drawn)
    ]  # fmt: skip
    return Calibration(presets[best].hardware, workload, rollout, rows)


def _rows(
    run: Recording, held_out: bool, costs: fit_hardware.CpuCosts, drawn: dict[str, float]
) -> Iterator[Row]:
    for name, work, predict in (
        ("engine busy, s", fit_hardware.engine_work(run), costs.engine_s),
        ("learner passes, s", fit_hardware.learner_work(run), costs.learner_s),
    ):
        yield Row(run.label, held_out, name, float(work.took_s_N.sum()), predict(work))
    for name, each_s in (("step", costs.step_s), ("fold", costs.fold_s)):
        took = [b.took_s for b in run.named(name)]
        if took:
            yield Row(run.label, held_out, f"{name}, s", sum(took), each_s * len(took))
    recorded = fit_workload.summary([life.plan for life in run.lives])
    for name, value in recorded.items():
        yield Row(run.label, held_out, name, value, drawn[name])


def preset(calibration: Calibration) -> str:
    """The YAML file, as Hydra reads it."""
    content = {
        "hardware": dataclasses.asdict(calibration.hardware),
        "workload": dataclasses.asdict(calibration.workload),
        "rollout": calibration.rollout,
    }
    text = yaml.safe_dump(content, sort_keys=False, width=1000)
    return f"# @package _global_\n# Written by python -m harness.calibrate.\n{text}"


def table(rows: Sequence[Row]) -> str:
    """As text, errors in per cent."""
    lines = [f"{'run':34} {'quantity':26} {'measured':>12} {'predicted':>12} {'error':>8}"]
    for row in rows:
        run = f"{row.run}{' (held out)' if row.held_out else ''}"
        lines.append(
            f"{run:34} {row.quantity:26} {row.measured:12.4g} {row.predicted:12.4g} "
            f"{'' if row.error is None else f'{100 * row.error:+.1f}%':>8}"
        )
    return "\n".join(lines)


def _folders(text: str) -> list[Path]:
    return [Path(part).expanduser() for part in text.split(",") if part]


def calibrate_from_command_line() -> None:
    usage = "python -m harness.calibrate runs=DIR,DIR out=FILE"
    settings = entry.settings(sys.argv[1:], KEYS, ("runs", "out"), usage)
    if not settings.get("cores", "1").isdigit() or settings.get("cores") == "0":
        raise UsageError(f"cores={settings['cores']}: give the number of the machine's cores")
    folders, held = _folders(settings["runs"]), _folders(settings.get("held_out", ""))
    runs = [read(folder, number) for number, folder in enumerate(folders)]
    held_out = [read(folder, len(folders) + number) for number, folder in enumerate(held)]
    machine_cores = int(settings.get("cores", cores()))
    with Simulator() as simulator, tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        made = calibrate(runs, held_out, machine_cores, cpu_model(), simulator, Path(folder))
    out = Path(settings["out"]).expanduser()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(preset(made), encoding="utf-8")
    print(table(made.rows), file=sys.stderr)
    entry.closing_line(
        {
            "out": str(out),
            "fitted": len(runs),
            "held_out": len(held_out),
            "errors": [dataclasses.asdict(row) | {"error": row.error} for row in made.rows],
        }
    )


def main() -> int:
    return entry.guarded(calibrate_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
