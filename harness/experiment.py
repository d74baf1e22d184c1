"""One run: build the parts, evaluate, train under the budget, evaluate, close, account.

Whatever happens, sandboxes and processes are ended, summary.json is written with what is known, and
the tracker's run is ended with the right status.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from harness import continuation
from harness import summary as closing
from harness.budget import Budget, BudgetEnded
from harness.charged import settings as charged
from harness.checkpointing import Checkpoints
from harness.cluster.devices import devices
from harness.cluster.worker import load
from harness.compact import CompactTimeline
from harness.config import Config
from harness.continuation import Resumption
from harness.display import Display
from harness.evaluation import Evaluation, evaluate
from harness.interrupt import Interrupted, run_async, run_virtual
from harness.learner.log import LoggedLearner
from harness.manifest import manifest
from harness.nvml import open_sampler
from harness.objectives import opd
from harness.parity import describe
from harness.parts import Parts, chunk_tokens, make_rollouts, open_parts, reward_penalty
from harness.protocols import Schedule, Trajectory
from harness.records import Records
from harness.replay import Replay, whole_batches
from harness.simulation import open_simulated
from harness.snapshots import Snapshots
from harness.teachers.scoring import Scoring
from harness.teachers.select import make_scoring
from harness.timeline import Timeline
from harness.tracking import open_tracker
from harness.training import Training
from harness.update_row import Row
from harness.virtual import VirtualClock
from harness.workload import Batches

log = logging.getLogger(__name__)


def execute(config: Config, folder: Path, display: Display) -> dict[str, Any]:
    """Run one job into `folder`; returns its summary. A finished one that is to go on (`resume`) is
    left as it is. Raises Interrupted after clean-up, UsageError for a checkpoint that cannot be
    gone on from."""
    if config.resume is not None:
        summary = continuation.finished(config, folder)
        if summary is not None:
            display.note(f"resume={config.resume}: {folder} has finished already: skipped")
            return summary
    with continuation.alone(config, folder):
        resumed = continuation.find(config, folder, display.note)
        return _execute(config, folder, display, resumed)


def _execute(
    config: Config, folder: Path, display: Display, resumed: Resumption | None
) -> dict[str, Any]:
    experiment = Experiment(config, folder, display, resumed)
    status = "failed"
    try:
        if experiment.virtual is not None:
            run_virtual(experiment.virtual, experiment.run())
        else:
            run_async(experiment.run())
        status = "finished"
    except Interrupted:
        status = "interrupted"
        raise
    finally:
        summary = experiment.close(status)
    return summary


class Experiment:
    """The state of one run. `run` does the work, `close` the accounting afterwards."""

    def __init__(
        self, config: Config, folder: Path, display: Display, resumed: Resumption | None = None
    ) -> None:
        self._config = config
        self._folder = folder
        self._display = display
        self._began_s = time.monotonic()
        self.checkpoints = Checkpoints(config, folder, resumed)
        self._going_on = self.checkpoints.resumed is not None
        self.records = Records(folder, self._going_on)
        self.virtual = VirtualClock() if config.clock.kind == "virtual" else None
        self.timeline = Timeline(self._began_s)
        if self.virtual is not None:
            self.timeline = CompactTimeline(self.virtual.now)
            display.label = "VIRTUAL"
        tracked = None if resumed is None else resumed.state["tracker_run"]
        self.tracker = open_tracker(config, folder.name, tracked)
        self.training: Training | None = None
        self.provider: Any = None
        self.errors: Counter[str] = Counter()
        self.scoring: Scoring | None = None
        self.policy_sha256: str | None = None
        self.evaluations = self.checkpoints.evaluations()
        self.curve: list[dict[str, Any]] = []
        self.snapshots = Snapshots(config.evaluation.marks, folder / "checkpoints")
        self._recorded: Batches = {}  # of a replay
        self.trains_on_evaluation = False
        self.nvml: Mapping[str, Any] | None = None
        self.setup_s: float | None = None
        self.evaluation_s = 0.0
        self._earlier_s = 0.0  # of a run that goes on
        if self._going_on:
            self.evaluation_s = self.checkpoints.times["evaluation_s"]
            if self.virtual is None:
                self._earlier_s = self.checkpoints.times["total_s"]

    async def run(self) -> None:
        """From set-up to the last evaluation; parts are ended on the way out."""
        config, display = self._config, self._display
        weights = self._folder / "checkpoints"
        weights.mkdir(parents=True, exist_ok=True)
        if config.replay is not None:  # refused before anything is started
            self._recorded = whole_batches(Path(config.replay), config.rollout)
        async with self._parts(weights) as parts:
            self.provider = parts.provider
            self.trains_on_evaluation = parts.trains_on_evaluation
            if self.trains_on_evaluation:
                display.note(
                    f"env.train_on_evaluation=true: training on {parts.environment.dataset}, which "
                    "was made for evaluation; the figures of this run say nothing about it"
                )
            self.records.manifest(manifest(config, **self._facts(parts)))
            self.setup_s = self._elapsed_s() - self._earlier_s
            if config.evaluation.initial and config.replay is None and not self._going_on:
                await self._evaluate(parts, "initial")
            whole = False
            try:
                await self._train(parts)
                if config.replay is None:
                    await self._evaluate_after(parts)
                whole = True
            finally:
                kept = config.checkpoint.every or config.resume  # a run that goes on needs them
                again = kept and not whole
                if not config.evaluation.keep_snapshots and not again:
                    self.snapshots.remove()
            display.phase("closing")

    def _parts(self, weights: Path) -> AbstractAsyncContextManager[Parts]:
        config, say = self._config, self._display.note
        if self.virtual is not None:
            self.tracker.ready()
            if charged.asked(config):
                from harness.charged.parts import open_charged

                return open_charged(config, self.virtual, self._run_id(), weights, say=say)
            return open_simulated(config, self.virtual, say=say)
        return open_parts(
            config, self._run_id(), weights, say=say, tracker_ready=self.tracker.ready
        )

    def _elapsed_s(self) -> float:
        """Seconds since the run began, on its own clock."""
        if self.virtual is not None:
            return self.virtual.now()
        return self._earlier_s + time.monotonic() - self._began_s

    def times(self) -> dict[str, float | None]:
        """Seconds so far, on the run's own clock."""
        return {
            "total_s": self._elapsed_s(),
            "setup_s": self.setup_s,
            "evaluation_s": self.evaluation_s,
        }

    def _run_id(self) -> str:
        return f"{os.getpid()}-{self._folder.name}"

    def _facts(self, parts: Parts) -> Mapping[str, Any]:
        """What only the run knows, for manifest.json."""
        provider = parts.provider
        self.policy_sha256 = _sha256(parts.policy_folder)
        return {
            "resumed_from": self.checkpoints.history(),
            "cluster": parts.cluster,
            "sandbox": None if provider is None else {"kind": provider.kind, "why": provider.why},
            "data": parts.environment.data_hashes(),
            "trains_on_evaluation": parts.trains_on_evaluation,
            "policy_folder": None if parts.policy_folder is None else str(parts.policy_folder),
            "policy_sha256": self.policy_sha256,
        }

    async def _evaluate_after(self, parts: Parts) -> None:
        """Training has stopped, the engine is free: the marks in order, then the last published
        weights."""
        training = self.training
        assert training is not None
        self.curve = await self.snapshots.evaluate(
            training.published,
            training.version,
            self._config.evaluation.final,
            parts.engine.update_weights,
            lambda phase: self._evaluate(parts, phase),
            first=str(parts.policy_folder),
            initial=self.evaluations.get("initial"),
        )
        for point in self.curve:
            self.tracker.update(point["updates"], {"accuracy": {"curve": point}})

    async def _evaluate(self, parts: Parts, name: str) -> Evaluation:
        """Outside the budget: before training has begun, and after it has stopped."""
        config = self._config
        self._display.phase(f"evaluation ({name})")
        started_s = self._elapsed_s()
        tasks = parts.environment.tasks(config.env.eval_split)[: config.evaluation.tasks]
        rollouts = make_rollouts(config, parts, config.evaluation.temperature)

        def record(trajectory: Trajectory) -> None:
            self.records.trajectory(trajectory, file="evaluation.jsonl", phase=name)

        self.evaluations[name] = found = await evaluate(
            rollouts,
            parts.clock,
            tasks,
            config.evaluation.samples_per_task,
            config.evaluation.seed,
            f"{name}-",
            record,
        )
        self.errors.update(rollouts.infrastructure_errors)
        await parts.engine.drain_intervals()  # not training: kept out of the timeline
        self.evaluation_s += self._elapsed_s() - started_s
        rate = found.solve_rate
        self._display.note(
            f"held-out solve rate ({name}): {rate if rate is None else f'{rate:.1%}'}"
        )
        return found

    async def _train(self, parts: Parts) -> None:
        config = self._config
        self._display.phase("training")
        self._display.budget(config.budget.kind, config.budget.limit)
        if self._going_on:
            parts.clock.resume(self.checkpoints.now_s)
            self._display.note(self.checkpoints.told())
        self.scoring = scoring = make_scoring(config, parts.teacher, parts.clock)
        rollouts = make_rollouts(
            config,
            parts,
            config.rollout.temperature,
            reward_penalty(config, parts.learner),
            scoring,
            self.checkpoints.kept,
        )
        source: Any = rollouts
        if config.replay is not None:
            source = Replay(
                self._recorded, parts.engine, parts.clock, config.rollout.temperature,
                origin_s=parts.clock.origin_s, scoring=scoring,
            )  # fmt: skip
        schedule: Schedule = load(config.schedule.target)(config)
        log = self._folder / "learner.jsonl"
        learner = LoggedLearner(parts.learner, log, self._going_on)
        self.timeline.origin_s = parts.clock.origin_s
        self.training = Training(
            learner=learner,
            engine=parts.engine,
            objective=opd.make(config.objective, config.rollout.group_size),
            budget=Budget(config.budget, devices(config).total, parts.clock),
            clock=parts.clock,
            timeline=self.timeline,
            begin=source.begin,
            take_intervals=source.take_intervals,
            scoring=scoring,
            tasks=parts.environment.tasks(config.env.split),
            groups_per_batch=config.rollout.groups_per_batch,
            chunk_tokens=chunk_tokens(config),
            without_padding=config.learner.packing == "packed",
            seed=config.seed,
            ranks=config.learner.ranks,
            replicas=config.engine.replicas,
            parity=config.parity,
            release=schedule.release,
            group_size=config.rollout.group_size,
            room=config.schedule.concurrent_trajectories
            or min(config.engine.slots * config.engine.replicas, config.sandbox.max_parallel),
            in_flight=config.schedule.partial_rollout,
            hears_turns=getattr(schedule, "hears_turns", True),
            on_update=self._on_update,
            on_trajectory=lambda t, batch: self.records.trajectory(t, batch=batch),
            boundary=lambda: self.checkpoints.boundary(self, parts, rollouts),
        )
        if isinstance(self.timeline, CompactTimeline):
            training = self.training
            self.timeline.windows = lambda: training.windows
        if self._going_on:
            await self.checkpoints.restore(self, parts, rollouts)
        else:
            await self.checkpoints.begin(self, parts, rollouts)
        self.tracker.again({row["update"]: closing.metrics(row) for row in self.training.rows})
        budget = self.training.budget
        if line := budget.shortfall(config.rollout.group_size * config.rollout.groups_per_batch):
            self._display.note(line)
        sampler = open_sampler(config, self._display.note)
        try:
            await schedule.run(self.training)
        except BudgetEnded as ended:
            self._display.note(f"{ended}: what no update was made of is discarded, its cost counts")
        finally:
            budget.end()
            if sampler is not None:
                sampler.stop()
                self.nvml = sampler.summary(self.training.windows)
            self.errors.update(rollouts.infrastructure_errors)
            self.errors.update(scoring.errors if scoring is not None else {})
            await learner.close()
        await parts.clock.cancel_all()
        await self.training.drain()  # the open batch's share, if there is one
        self.snapshots.end(budget, self.training.published, self.training.version)
        if (line := budget.without_update()) is not None:
            self._display.note(line)

    def _on_update(self, row: Row) -> None:
        self.records.update(row)
        metrics = closing.metrics(row)
        self.tracker.update(row["update"], metrics)
        self._display.update(metrics)
        if row["decide_s"] is not None:
            why, took_s = row["release_why"], row["decide_s"]
            self._display.note(f"update {row['update']}: {why}; decided in {took_s:.3f} s")
        if self.training is not None and row["gradient_relative_error"] is not None:
            self._display.note(describe(self.training.parity.figures[-1], row["update"]))
        if self.training is not None and self.training.published is not None:
            self.snapshots.offer(
                self.training.budget, self.training.published, self.training.version
            )

    def close(self, status: str) -> dict[str, Any]:
        """Write summary.json and timeline.json and end the tracker's run; the loop has ended."""
        summary = closing.summarise(
            self._config,
            status,
            training=self.training,
            evaluations=self.evaluations,
            timeline=self.timeline,
            provider=self.provider,
            errors=self.errors,
            outcomes=self.records.outcomes,
            times=self.times(),
        )
        summary["trains_on_evaluation"] = self.trains_on_evaluation
        summary["accuracy"]["curve"] = self.curve
        summary["nvml"] = self.nvml
        if self.virtual is not None:
            summary["time"]["simulated_in_s"] = time.monotonic() - self._began_s
            summary["simulation"] = {"events": self.virtual.events}
        self.records.close()
        self.timeline.write(self._folder / "timeline.json")
        self.records.summary(summary)
        self.tracker.close(status, summary, self._folder)
        return summary


def _sha256(policy: Path | None) -> str | None:
    """Of the weights that training starts from."""
    weights = policy / "model.safetensors" if policy is not None else None
    if weights is None or not weights.is_file():
        return None
    return hashlib.sha256(weights.read_bytes()).hexdigest()
