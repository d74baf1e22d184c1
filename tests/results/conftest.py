"""Folders of made-up runs, as whole as real ones, whose figures are known."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MADE_UP = {
    "env": "swebench", "dataset": "mini", "objective": "grpo", "policy": "tiny",
    "engine": "torch", "learner": "torch", "sandbox": "bubblewrap", "clock": "wall",
    "cluster": "local", "hardware": "cpu, 2 cores, made up",
}  # fmt: skip
GROUPS, SIZE = 2, 4
Make = Callable[..., Path]


def summary_of(
    schedule: str, seed: int, update_s: float, updates: int, final: float | None, **more: Any
) -> dict[str, Any]:
    share = {"busy": 0.4, "blocked": 0.1, "idle": 0.5}
    summary = {
        "schema_version": 1, "status": "finished", "schedule": schedule,
        "release": {"sync": "batch", "stream": "reward"}.get(schedule),
        "placement": "disaggregated", "seed": seed, **MADE_UP, "devices": {"total": 2},
        "budget": {"kind": "device_s", "limit": 80.0, "spent": 80.0},
        "updates": updates, "trajectories": updates * GROUPS * SIZE, "trajectories_lost": 1,
        "tokens_generated": 1000, "tokens_trained": 900,
        "time": {"per_update_s": update_s, "tail_s": 1.0, "training_s": 40.0, "total_s": 60.0,
                 "rollout_s": update_s - 1, "verify_s": 0.2, "sandbox_start_s": 0.1},
        "idle": {"learner": 0.6, "engine": 0.6, "devices": 0.6},
        "resources": {"learner": share, "engine": share, "sandbox": share},
        "staleness": {"mean": 1.0 if schedule == "async" else 0.0, "max": 2,
                      "violations": {"bound": 4, "tokens": 0, "trajectories": 0}},
        "accuracy": {"initial": 0.25, "final": final, "tasks": 4, "samples_per_task": 2,
                     "curve": [{"mark": 0.5, "spent": 40.0, "updates": updates // 2, "version": 2,
                                "phase": "mark-0.5", "solve_rate": 0.375, "standard_error": 0.1,
                                "pass_at_k": None, "lost": 0}]},
        "overlap_efficiency": 0.9 if schedule == "stream" else None,
        "ledger": {"form": "auto", "buffers_peak": 3, "bytes_peak": 3_000_000}
        if schedule == "stream" else None,
        "parity": {"checked": 2, "ok": True, "gradient_relative_error_max": 9.2e-7,
                   "control_relative_error_max": 7e-7, "parameter_gap": 9e-5,
                   "control_parameter_gap": 7e-5} if schedule == "stream" else None,
    }  # fmt: skip
    return summary | more


def configuration(schedule: str, seed: int) -> dict[str, Any]:
    return {
        "seed": seed, "env": {"name": "swebench"}, "schedule": {"name": schedule},
        "rollout": {"group_size": SIZE}, "budget": {"kind": "device_s"},
        "tracking": {"uri": f"somewhere/{seed}"},
    }  # fmt: skip


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """make_run(name, schedule, seed, update_s=…, final=…, config={…}, detailed=False, **summary)
    leaves a folder below tmp_path/runs; `detailed` with trajectories and a timeline."""

    def make(
        name: str, schedule: str = "sync", seed: int = 0, update_s: float = 10.0,
        final: float | None = 0.5, updates: int = 4, config: dict[str, Any] | None = None,
        detailed: bool = False, **more: Any,
    ) -> Path:  # fmt: skip
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        summary = summary_of(schedule, seed, update_s, updates, final, **more)
        _write(folder / "summary.json", summary)
        manifest = {
            "command": ["python", "-m", "harness.run", f"schedule={schedule}", f"seed={seed}"],
            "config": configuration(schedule, seed) | (config or {}),
            "git": {"commit": "c0ffee", "dirty": False},
        }
        _write(folder / "manifest.json", manifest)
        _updates(folder / "updates.csv", schedule, update_s, updates)
        _evaluations(folder / "evaluation.jsonl", final)
        if detailed:
            _rollouts(folder, schedule, seed, update_s, updates)
        return folder

    return make


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _updates(path: Path, schedule: str, update_s: float, updates: int) -> None:
    rows = [
        {
            "update": k + 1, "version": k + 1, "started_s": 5 + k * update_s,
            "ended_s": 5 + (k + 1) * update_s, "per_update_s": update_s, "tail_s": 1.0,
            "rollout_s": update_s - 1, "reward_mean": 0.3 + 0.02 * k, "idle_learner": 0.6,
            "idle_engine": 0.6, "budget_spent": 2 * (k + 1) * update_s,
            "groups": " ".join(str(k * GROUPS + g) for g in range(GROUPS)),
            "t_s": update_s - 0.5 if schedule == "stream" else "",
            "t_star_s": update_s - 0.6 if schedule == "stream" else "",
            "t_sync_s": update_s + 1 if schedule == "stream" else "",
        }
        for k in range(updates)
    ]  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["update"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _evaluations(path: Path, final: float | None) -> None:
    """Four tasks, two samples: as many solved as the rates say, of the first tasks first."""
    rates = {"initial": 0.25, "mark-0.5": 0.375, "final": final}
    with path.open("w", encoding="utf-8") as file:
        for phase, rate in rates.items():
            for k in range(8 if rate is not None else 0):
                line = {
                    "phase": phase, "trajectory_id": f"{phase}-{k // 2}-{k % 2}",
                    "task_id": f"task-{k // 2}", "difficulty": "easy", "index": k % 2,
                    "reward": float(k < round((rate or 0) * 8)), "token_ids": [1, 2, 3],
                }  # fmt: skip
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _rollouts(folder: Path, schedule: str, seed: int, update_s: float, updates: int) -> None:
    draw = random.Random(seed)
    lines, events = [], []
    tracks = ["engine/0", "learner/0", *(f"sandbox/{n:02d}" for n in range(GROUPS * SIZE))]
    ids = {track: n for n, track in enumerate(tracks, 1)}

    def bar(track: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        events.append({"ph": "X", "name": name, "pid": 1, "tid": ids[track], "ts": start_s * 1e6,
                       "dur": (end_s - start_s) * 1e6, "args": args})  # fmt: skip

    for track, n in ids.items():
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": n,
                       "args": {"name": track}})  # fmt: skip
    for k in range(updates):
        start_s, work_s = 5 + k * update_s, update_s - 1.5
        ends = []
        bar("engine/0", "generate", start_s + 0.2, start_s + 0.2 + work_s * 0.8)
        for group in range(k * GROUPS, (k + 1) * GROUPS):
            for index in range(SIZE):
                slot = f"sandbox/{group % GROUPS * SIZE + index:02d}"
                end_s = start_s + work_s * (0.3 + 0.7 * draw.random())
                ends.append((end_s, f"{group}-{index}"))
                bar(slot, "start", start_s, start_s + 0.1)
                bar(slot, "exec", start_s + 0.2, end_s - 0.2)
                bar(slot, "verify", end_s - 0.2, end_s)
                lines.append({
                    "batch": k, "trajectory_id": f"{group}-{index}", "task_id": f"t{group}",
                    "group": group, "index": index, "reward": float(draw.random() < 0.5),
                    "infrastructure_error": None, "started_s": start_s, "finished_s": end_s - 0.2,
                    "reward_s": end_s, "tokens": draw.randrange(60, 600), "action_tokens": 40,
                    "version_spans": [[max(0, k - (schedule == "async")), 0, 40]],
                    "turns": [{}] * draw.randrange(1, 9), "token_ids": [1],
                })  # fmt: skip
        for n, (end_s, trajectory) in enumerate(sorted(ends)):
            at_s = end_s if schedule == "stream" else start_s + work_s + 0.1 * n
            name = "capture" if schedule == "stream" else "accumulate"
            bar("learner/0", name, at_s, at_s + 0.1, trajectories=[trajectory])
        bar("learner/0", "step", start_s + update_s - 0.2, start_s + update_s - 0.1)
        bar("learner/0", "publish", start_s + update_s - 0.1, start_s + update_s)
    with (folder / "trajectories.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    _write(folder / "timeline.json", {"traceEvents": events})
