"""Synthetic recordings: what a machine of known costs would have written."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import composition
from harness.costs.shapes import shape

POLICY = shape("tiny")


@dataclass(frozen=True)
class Planted:
    """What is to be found again: seconds, FLOPs a second, and a busy sandbox's part of a core."""

    step_s: float = 0.02
    engine_flops_s: float = 2e9
    read_flops_s: float = 20e9
    pass_s: float = 0.05
    learner_flops_s: float = 5e9
    capture_s: float = 0.04
    sandbox_cores: float = 0.5
    sandboxes_felt: int = 8
    engine_thread_gain: float = 0.75
    learner_thread_gain: float = 0.5
    optimizer_s: float = 0.006
    start_gap_s: float = 0.012


class Writer:
    """A run's events, written one after the other."""

    def __init__(self, planted: Planted, seed: int, threads: int) -> None:
        self.planted, self.random, self.threads = planted, random.Random(seed), threads
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            for pid, name in ((1, "engine"), (3, "learner"), (4, "sandbox"))
        ]
        self.lines: list[dict[str, Any]] = []

    def busy(self, pid: int, name: str, start_s: float, took_s: float, **args: Any) -> None:
        self.events.append({"ph": "X", "pid": pid, "tid": 1, "name": name, "ts": start_s * 1e6,
                            "dur": took_s * 1e6, "args": args})  # fmt: skip

    def contention(self, sandboxes: int) -> float:
        felt = min(sandboxes, self.planted.sandboxes_felt)
        return max(1.0, (self.threads + self.planted.sandbox_cores * felt) / 2)

    def decode(
        self, start_s: float, running: int, prompt: int, tokens: int, sandboxes: int
    ) -> float:
        """`running` lives of one turn each, beside sandboxes at work; returns the end."""
        planted = self.planted
        token_flops = 2 * POLICY.active_parameters + POLICY.pair_flops * (prompt + tokens / 2)
        flops_s = tokens / planted.engine_flops_s + prompt / planted.read_flops_s
        faster = 1 + (self.threads - 1) * planted.engine_thread_gain
        alone_s = tokens * planted.step_s + running * token_flops * flops_s / faster
        took_s = alone_s * self.contention(sandboxes)
        self.busy(1, "generate", start_s, took_s, generated_tokens=running * tokens)
        for _ in range(sandboxes):
            self.busy(4, "exec", start_s, took_s)
        for i in range(running):
            self.life(start_s, start_s + took_s, prompt, tokens, i)
        return start_s + took_s

    def life(self, start_s: float, end_s: float, prompt: int, tokens: int, index: int) -> None:
        turn = {"started_s": start_s, "generated_s": end_s, "finished_s": end_s, "exec_s": 0.0,
                "action_start": prompt, "action_end": prompt + tokens}  # fmt: skip
        self.lines.append({
            "group": len(self.lines) // 8, "index": index, "reward": 1.0, "end": "submit",
            "infrastructure_error": None, "difficulty": "easy", "sandbox_start_s": 0.5,
            "started_s": start_s + index * self.planted.start_gap_s,
            "verify_s": 1.0, "finished_s": end_s, "reward_s": end_s + 1.25,
            "tokens": prompt + tokens, "turns": [turn],
        })  # fmt: skip

    def learn(self, start_s: float, name: str, rows: int, length: int, sandboxes: int) -> float:
        """One pass over rows of one length."""
        pairs = rows * length * (length + 1) / 2
        flops = 3 * (2 * POLICY.active_parameters * rows * length + POLICY.pair_flops * pairs)
        faster = 1 + (self.threads - 1) * self.planted.learner_thread_gain
        alone_s = self.planted.pass_s + flops / self.planted.learner_flops_s / faster
        alone_s += self.planted.capture_s * (name == "capture")
        took_s = alone_s * self.contention(sandboxes)
        self.busy(3, name, start_s, took_s, padded=rows * length,
                  trajectories=[str(i) for i in range(rows)])  # fmt: skip
        for _ in range(sandboxes):
            self.busy(4, "verify", start_s, took_s)
        return start_s + took_s

    def write(self, folder: Path, schedule: str, seed: int) -> Path:
        """The files of a run that calibration reads."""
        (folder / ".hydra").mkdir(parents=True)
        config = {
            "policy": {"name": "tiny"},
            "schedule": {"engine_devices": self.threads, "learner_devices": self.threads},
            "rollout": {"groups_per_batch": 2, "group_size": 8, "max_turns": 10,
                        "max_new_tokens": 64, "max_context_tokens": 640, "time_limit_s": 300.0},
        }  # fmt: skip
        summary = {"schedule": schedule, "seed": seed, "clock": "wall",
                   "placement": "disaggregated" if self.threads == 1 else "colocated"}  # fmt: skip
        lines = "".join(json.dumps(line) + "\n" for line in self.lines)
        for name, text in (
            ("summary.json", json.dumps(summary)),
            ("timeline.json", json.dumps({"traceEvents": self.events})),
            ("trajectories.jsonl", lines),
            (".hydra/config.yaml", json.dumps(config)),
        ):
            (folder / name).write_text(text)
        return folder


def record(folder: Path, planted: Planted, seed: int, streaming: bool, threads: int = 1) -> Path:
    """A run whose engine, learner and sandboxes were busy beside each other now more, now less."""
    writer = Writer(planted, seed, threads)
    now = 0.0
    for _ in range(30):
        draw = writer.random
        running, prompt = draw.choice((8, 16, 24)), draw.randint(30, 300)
        now = writer.decode(now, running, prompt, draw.randint(5, 40), draw.randint(0, 14))
        now += 1.0
        sandboxes = draw.randint(0, 14) if streaming else 0
        name = "capture" if streaming and draw.random() < 0.5 else "accumulate"
        now = writer.learn(now, name, draw.randint(1, 12), draw.randint(50, 400), sandboxes)
        now += 1.0
    for _ in range(5):
        writer.busy(3, "step", now, planted.optimizer_s)
        now += 1.0
    return writer.write(folder, "stream" if streaming else "sync", seed)


UPDATES = """\
update,per_update_s,tail_s,idle_learner,idle_engine
1,4.0,2.0,0.25,0.1
2,2.0,0.0,0.75,0.4
3,9.0,9.0,0.0,0.0
"""


def simulable(folder: Path, streaming: bool, seed: int) -> Path:
    """A synthetic run with all of a configuration and the figures that are compared."""
    record(folder, Planted(), seed, streaming)
    name = "stream" if streaming else "sync"
    config = asdict(
        composition.compose(
            [f"schedule={name}", f"seed={seed}", "budget.kind=updates", "budget.limit=2",
             "rollout.groups_per_batch=2", "rollout.group_size=8", "rollout.max_turns=10",
             "rollout.max_new_tokens=64", "sandbox.max_parallel=7", "tracking=none",
             "schedule.chunk_tokens=900"]
        )
    )  # fmt: skip
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(config))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"updates": 2}))
    (folder / "updates.csv").write_text(UPDATES)
    return folder
