"""What every schedule takes on the paper's node, each at its best split of devices: VIRTUAL.

    python -m harness.paper_table out=FOLDER [hardware=8xb200] [workload=swebench_verified]
                                  [updates=6] [seed=0] [only=LABEL,LABEL]

Each schedule and rung is simulated at the preset's split and at the best of its own, which is
looked for from there towards whichever side is faster, until neither is: one update's time is taken
to have one valley over the splits. All meet the same lives. Writes paper_table.md and
paper_table.json into FOLDER; a run that is already there is not made again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import entry
from harness.protocols import UsageError
from harness.virtual_jobs import Simulator, made_by, summary_updates

KEYS = ("out", "hardware", "workload", "updates", "seed", "only")
SCHEDULES: dict[str, tuple[str, ...]] = {
    "sync": ("schedule=sync",),
    "sync_colocated": ("schedule=sync_colocated",),
    "one_step_off": ("schedule=one_step_off",),
    "async_1": ("schedule=async",),
    "async_4": ("schedule=async_4",),
    "stream_group": ("schedule=stream", "schedule.release=group"),
    "stream_reward": ("schedule=stream", "schedule.release=reward"),
    "stream_submit": ("schedule=stream", "schedule.release=submit"),
    "stream_turn": ("schedule=stream", "schedule.release=turn"),
}
ON_POLICY = ("sync", "sync_colocated", "stream_group", "stream_reward", "stream_submit",
             "stream_turn")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one split. `ideal_s` is what an update would take if its gradients ended at
    T* of these arrivals; None for a schedule whose updates have none. `turn_bytes` is the most that
    a learner rank holds of running trajectories' turns."""

    label: str
    engine_devices: int
    learner_devices: int
    best: bool
    per_update_s: float
    rollout_s: float
    tail_s: float
    idle_learner: float
    idle_engine: float
    staleness: float
    ideal_s: float | None
    hardware: str
    clock: str
    turn_bytes: int | None = None


def ideal_s(folder: Path) -> float | None:
    """The mean update without the seconds between T* and the end of its gradients."""
    saved = [
        float(row["per_update_s"]) - (float(row["t_s"]) - float(row["t_star_s"]))
        for row in summary_updates(folder)
        if row.get("t_star_s") and row.get("t_s")
    ]
    return fmean(saved) if saved else None


def valley(start: int, step: int, low: int, high: int, cost: Callable[[int], float]) -> int:
    """Where `cost` is lowest from `start` on downhill, between low and high."""
    best = start
    for direction in (step, -step):
        while low <= best + direction <= high and cost(best + direction) < cost(best):
            best += direction
        if best != start:
            break
    return best


class Table:
    """The runs of one hardware and workload."""

    def __init__(self, simulator: Simulator, folder: Path, common: Sequence[str]) -> None:
        self._simulator, self._folder, self._common = simulator, folder, list(common)
        config = simulator.config(common)
        hardware, schedule = config.hardware, config.schedule
        self.devices, self._engines = hardware.devices, schedule.engine_devices
        self._step = math.lcm(hardware.engine_tensor_parallel, hardware.learner_tensor_parallel)

    def rows(self, label: str) -> list[Row]:
        """At the preset's split, and at the best where that is another one."""
        found: dict[int, Row] = {}

        def at(engines: int) -> Row:
            if engines not in found:
                found[engines] = self._row(label, engines)
            return found[engines]

        if label == "sync_colocated":
            return [dataclasses.replace(at(self.devices), best=True)]
        last = self.devices - self._step
        best = valley(
            self._engines, self._step, self._step, last, lambda n: at(n).per_update_s
        )  # fmt: skip
        wanted = dict.fromkeys((self._engines, best))
        return [dataclasses.replace(at(n), best=n == best) for n in wanted]

    def _row(self, label: str, engines: int) -> Row:
        learners = self.devices - engines
        overrides = [*self._common, *SCHEDULES[label]]
        if label != "sync_colocated":
            overrides += [f"schedule.engine_devices={engines}",
                          f"schedule.learner_devices={learners}"]  # fmt: skip
        folder = self._folder / "runs" / f"{label}_{engines}"
        summary = self._simulator.run(self._simulator.config(overrides), folder)
        print(f"VIRTUAL {label}, {engines} for engines: done", file=sys.stderr, flush=True)
        time, idle = summary["time"], summary["idle"]
        return Row(
            label, summary["devices"]["engine"], summary["devices"]["learner"], False,
            time["per_update_s"], time["rollout_s"], time["tail_s"], idle["learner"],
            idle["engine"], summary["staleness"]["mean"] or 0.0, ideal_s(folder),
            summary["hardware"], summary["clock"],
            summary.get("segments", {}).get("live_bytes_peak"),
        )  # fmt: skip


def markdown(rows: Sequence[Row], devices_shared: str) -> str:
    """A line a row. Speed is against the fastest on-policy row that does not stream."""
    base = min(r.per_update_s for r in rows if r.label.startswith("sync"))
    lines = [
        "| schedule | engine + learner | split | update, s | against best sync | rollout, s | "
        "tail, s | learner idle | engine idle | staleness | update at T*, s | turns hold, GB a "
        "rank | ran on |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        split = f"{row.engine_devices} + {row.learner_devices}"
        if row.label == "sync_colocated":
            split = devices_shared
        ideal = "" if row.ideal_s is None else f"{row.ideal_s:.0f}"
        held = "" if row.turn_bytes is None else f"{row.turn_bytes / 1e9:.0f}"
        lines.append(
            f"| {row.label} | {split} | {'best' if row.best else 'preset'} | "
            f"{row.per_update_s:.0f} | {base / row.per_update_s:.2f} x | {row.rollout_s:.0f} | "
            f"{row.tail_s:.0f} | {100 * row.idle_learner:.0f} % | {100 * row.idle_engine:.0f} % | "
            f"{row.staleness:.2f} | {ideal} | {held} | {row.hardware}, {row.clock} clock |"
        )
    return "\n".join(lines) + "\n"


def verdict(rows: Sequence[Row]) -> str:
    """Where streaming wins and by how much, each side at its best, and where it does not."""

    def fastest(labels: Sequence[str]) -> Row | None:
        return min(
            (r for r in rows if r.label in labels), key=lambda r: r.per_update_s, default=None
        )

    stream = fastest([k for k in SCHEDULES if k.startswith("stream")])
    lines = []
    for name, other in (
        ("synchronous on its own devices", fastest(["sync"])),
        ("synchronous on shared devices", fastest(["sync_colocated"])),
        ("one step off", fastest(["one_step_off"])),
        ("asynchronous, bound 1", fastest(["async_1"])),
        ("asynchronous, bound 4", fastest(["async_4"])),
    ):
        if stream is not None and other is not None:
            ratio = other.per_update_s / stream.per_update_s
            word = "faster than" if ratio > 1 else "NOT faster than"
            lines.append(
                f"* VIRTUAL: streaming ({stream.label}, {stream.engine_devices} + "
                f"{stream.learner_devices}) is {word} {name} at its best: {ratio:.2f} x."
            )
    if any(r.turn_bytes is not None for r in rows):
        lines.append(
            "* VIRTUAL: stream_turn on several learner ranks exists on paper alone: real learners "
            "take turns in one process. What its ranks hold comes to what they hold anyway, and "
            "nothing bounds it here (segments.max_live_bytes would)."
        )
    return "\n".join(lines) + "\n"


def make_from_command_line() -> None:
    given = {"hardware": "8xb200", "workload": "swebench_verified", "updates": "6", "seed": "0"}
    given |= entry.settings(
        sys.argv[1:], KEYS, ("out",), "python -m harness.paper_table out=FOLDER"
    )
    labels = [x for x in given.get("only", "").split(",") if x] or list(SCHEDULES)
    for label in labels:
        if label not in SCHEDULES:
            raise UsageError(f"only={label}: no such schedule; there is: {', '.join(SCHEDULES)}")
    if not any(label.startswith("sync") for label in labels):
        raise UsageError(
            "only: speeds are against sync or sync_colocated; name one of them as well"
        )
    folder = Path(given["out"]).expanduser().resolve()
    common = [
        f"hardware={given['hardware']}", f"workload={given['workload']}", f"seed={given['seed']}",
        "budget.kind=updates", f"budget.limit={given['updates']}",
    ]  # fmt: skip
    with Simulator() as simulator:
        made = Table(simulator, folder, common)
        rows = [row for found in simulator.side_by_side(made.rows, labels) for row in found]
    arguments = ["out=...", *(a for a in sys.argv[1:] if not a.startswith("out="))]
    shared = f"all {made.devices}, in turns"
    text = (
        f"# Schedules on {given['hardware']}, {given['workload']}, each at its best split\n\n"
        f"{made_by('harness.paper_table', arguments)}\n"
        f"{given['updates']} updates of each, seed {given['seed']}, the same lives for all.\n\n"
        f"{verdict(rows)}\n{markdown(rows, shared)}"
    )
    (folder / "paper_table.md").write_text(text, encoding="utf-8")
    closing: list[dict[str, Any]] = [dataclasses.asdict(row) for row in rows]
    (folder / "paper_table.json").write_text(json.dumps(closing, indent=1) + "\n", encoding="utf-8")
    print(f"{verdict(rows)}\n{markdown(rows, shared)}", file=sys.stderr)
    entry.closing_line(closing)


def main() -> int:
    return entry.guarded(make_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
