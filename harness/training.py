"""The Run that every schedule is given: batches under the budget, advantages, chunks, records."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from environments.protocols import InfrastructureKind
from harness.batch import LiveBatch
from harness.budget import Budget, BudgetEnded
from harness.config import ParityConfig
from harness.objectives.grpo import Grpo
from harness.overlap import overlap_row
from harness.packing import abreast, pack, task_order
from harness.parity import COLUMNS as PARITY_COLUMNS
from harness.parity import ParityChecks
from harness.protocols import (
    Batch,
    Clock,
    Engine,
    Event,
    Group,
    GroupClosed,
    InfrastructureError,
    Learner,
    ParityFigures,
    Release,
    RewardArrived,
    StepStats,
    Task,
    Trajectory,
    TrajectoryLost,
    TurnFinished,
)
from harness.timeline import Timeline, Window
from harness.timings import History, UpdateTimings

Row = dict[str, Any]
StartBatch = Callable[[int, int, Sequence[Task], int, Callable[[Event], None]], LiveBatch]


class Training:
    """One run's training loop seen from a schedule; implements the Run protocol.

    `release` is the schedule's rung until it says otherwise (`decided`, which took `decide_s` of
    the update; None where nothing was decided); `timings` may go on from
    earlier updates. `on_update` gets one row per optimizer step, `on_trajectory` every trajectory
    once its end is known (with its batch index)."""

    def __init__(
        self,
        *,
        learner: Learner,
        engine: Engine,
        objective: Grpo,
        budget: Budget,
        clock: Clock,
        timeline: Timeline,
        start_batch: StartBatch,
        take_intervals: Callable[[], list[Any]],
        tasks: Sequence[Task],
        groups_per_batch: int,
        chunk_tokens: int,
        seed: int,
        version: int = 0,
        ranks: int = 1,
        parity: ParityConfig | None = None,
        release: Release | None = None,
        timings: History | None = None,
        on_update: Callable[[Row], None],
        on_trajectory: Callable[[Trajectory, int], None],
    ) -> None:
        self.learner = learner
        self._engine = engine
        self._objective = objective
        self.budget = budget
        self._clock = clock
        self._timeline = timeline
        self._start_batch = start_batch
        self._take_intervals = take_intervals
        self._order = task_order(tasks, seed)
        self._groups_per_batch = groups_per_batch
        self._chunk_tokens = chunk_tokens
        self.ranks = ranks
        self._seed = seed
        self._on_update = on_update
        self._on_trajectory = on_trajectory
        self.parity = ParityChecks(parity or ParityConfig(), learner, objective)
        self._figures: ParityFigures | None = None
        self.release: Release | None = release
        self.release_why = ""
        self._handed_s = 0.0
        self.decide_s: float | None = None
        self.timings = timings or History(separate=objective.regularised)
        self._version = version
        self._last_loss: InfrastructureKind = "start"
        self._tokens_before = 0
        self.rows: list[Row] = []
        self.lost = 0
        self.tokens_trained = 0
        self.staleness: list[tuple[int, int]] = []  # (versions, tokens)

    async def batches(self) -> AsyncIterator[Batch]:
        """Batches until the budget ends, each with the newest published weights."""
        index = 0
        self.budget.start()
        while not self.budget.exhausted:
            tasks = [next(self._order) for _ in range(self._groups_per_batch)]
            record = self._recorder(index)
            batch = self._start_batch(index, self._version, tasks, self._seed, record)
            remaining_s = self.budget.remaining_s
            if remaining_s is not None:
                self._clock.spawn(self._deadline(batch, remaining_s), f"deadline-{index}")
            self._handed_s, self.decide_s = self._clock.now(), None
            yield batch
            index += 1

    async def _deadline(self, batch: LiveBatch, remaining_s: float) -> None:
        while remaining_s > 0:  # again after a pause, which does not count
            await self._clock.sleep(remaining_s)
            remaining_s = self.budget.remaining_s or 0.0
        batch.fail(BudgetEnded(f"budget.{self.budget.kind}={self.budget.limit:g} is spent"))

    def _recorder(self, index: int) -> Callable[[Event], None]:
        def record(event: Event) -> None:
            if isinstance(event, TurnFinished):
                turn = event.trajectory.turns[event.turn]
                self.budget.counters.tokens += turn.action_end - turn.action_start
            elif isinstance(event, RewardArrived):
                self.budget.counters.trajectories += 1
                self._instant(event.trajectory.group, "reward", event.trajectory.trajectory_id)
                self._on_trajectory(event.trajectory, index)
            elif isinstance(event, TrajectoryLost):
                self.lost += 1
                self._last_loss = event.kind
                self._instant(event.trajectory.group, "lost", event.trajectory.trajectory_id)
                self._on_trajectory(event.trajectory, index)
            elif isinstance(event, GroupClosed):
                self._instant(event.group.group, "closed", event.group.task_id)

        return record

    def _instant(self, group: int, name: str, subject: str) -> None:
        place = group % self._groups_per_batch
        self._timeline.instant(f"group/{place:02d}", name, group=group, subject=subject)

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        return self._objective.coefficients(group)

    def enters(self, trajectory: Trajectory) -> bool:
        return self._objective.enters(trajectory)

    def matters(self, advantage: float) -> bool:
        return self._objective.matters(advantage)

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return pack(trajectories, self._chunk_tokens)

    def rounds(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        return abreast(self.chunks(trajectories), self.ranks)

    def _packed(self, batch: Batch) -> list[list[Trajectory]]:
        """The backward passes of the synchronous schedule, over what has a gradient."""
        pairs = [p for g in batch.groups for p in self.coefficients(g).values()]
        return self.chunks([t for t, advantage in pairs if self.matters(advantage)])

    def decided(self, release: Release, why: str) -> None:
        """Timed from the batch's hand-over: its rollouts run on meanwhile, its events wait."""
        self.decide_s = self._clock.now() - self._handed_s
        self.release, self.release_why = release, why

    async def step(self, batch: Batch) -> StepStats:
        normaliser = self._objective.normaliser(batch.groups)
        self._figures = None
        if self.parity.due():
            with self.budget.paused():
                self._figures = await self.parity.check(
                    batch, normaliser, self._packed(batch), self._chunk_tokens
                )
        return await self.learner.step(normaliser)

    async def finish_update(self, batch: Batch, stats: StepStats) -> None:
        """Publish and record. Raises BudgetEnded where a time budget ended meanwhile: such an
        update is discarded whichever schedule made it; InfrastructureError where nothing is left
        of the batch."""
        if self.budget.remaining_s == 0:
            raise BudgetEnded(f"budget.{self.budget.kind}={self.budget.limit:g} is spent")
        if all(group.dropped for group in batch.groups):
            raise InfrastructureError(
                self._last_loss, f"every group of batch {batch.index} lost a trajectory for good"
            )
        path, version = await self.learner.publish()
        await self._engine.update_weights(path, version)
        self._version = version
        drained = await self.drain()
        self.budget.counters.updates += 1
        row = self._row(batch, stats, drained)
        self.rows.append(row)
        self._on_update(row)

    async def drain(self) -> Timeline:
        """What engine, learner and sandboxes were busy with since the last call; kept as well."""
        drained = Timeline(self._timeline.origin_s)
        drained.extend(await self.learner.drain_intervals())
        drained.extend(await self._engine.drain_intervals())
        drained.extend(self._take_intervals())
        self._timeline.extend(drained.intervals)
        return drained

    @property
    def windows(self) -> list[Window]:
        """The budget's windows on the machine's clock; none before training has begun."""
        return self._absolute(self.budget.training)

    def _absolute(self, windows: Sequence[Window]) -> list[Window]:
        origin_s = self._timeline.origin_s
        return [(origin_s + start, origin_s + end) for start, end in windows]

    def _overlap(self, batch: LiveBatch, stats: StepStats, timeline: Timeline) -> Row:
        """Keep what this update measured, and compare it with its bounds."""
        stepping_s = min(i.start_s for i in timeline.intervals if i.name == "step")
        update = UpdateTimings(
            groups=batch.groups,
            started_s=batch.started_s,
            last_event_s=batch.last_event_s,
            step_s=self.budget.between_s(batch.started_s, stepping_s - timeline.origin_s),
            intervals=[i for i in timeline.intervals if i.resource.startswith("learner/")],
            release=self.release,
            buffer_bytes=stats.buffer_bytes,
            free_bytes=stats.free_bytes,
        )
        self.timings.add(update)
        return overlap_row(update, self._packed(batch), self.timings.costs())

    def _row(self, batch: Batch, stats: StepStats, timeline: Timeline) -> Row:
        """One line of updates.csv: times in seconds, fractions of this update's own window;
        `timeline` holds this update's intervals."""
        if not isinstance(batch, LiveBatch):
            raise TypeError(f"finish_update takes the batch that batches() gave, not {batch!r}")
        now = self._clock.now()
        windows = self._absolute(self.budget.windows(batch.started_s, now))
        generated = self.budget.counters.tokens - self._tokens_before
        self._tokens_before = self.budget.counters.tokens
        stepped_s = max(i.end_s for i in timeline.intervals if i.name == "step")
        tail_s = self.budget.between_s(batch.last_event_s, stepped_s - timeline.origin_s)
        learner, engine = timeline.resources("learner"), timeline.resources("engine")
        kept = [t for g in batch.groups for t in g.trajectories]
        ages = [(batch.version - s.version, s.end - s.start) for t in kept for s in t.version_spans]
        trained = sum(tokens for _, tokens in ages)
        self.tokens_trained += trained
        self.staleness += ages
        rewards = [r for r in (t.verdict_reward for t in kept) if r is not None]
        degenerate = sum(not g.dropped and self._objective.degenerate(g) for g in batch.groups)
        return {
            "update": self.budget.counters.updates,
            "version": stats.version,
            "started_s": batch.started_s,
            "ended_s": now,
            "per_update_s": self.budget.between_s(batch.started_s, now),
            "rollout_s": batch.last_event_s - batch.started_s,
            "tail_s": tail_s,
            "learner_busy_s": timeline.busy_s(learner, windows),
            "engine_busy_s": timeline.busy_s(engine, windows),
            "idle_learner": timeline.idle_fraction(learner, windows),
            "idle_engine": timeline.idle_fraction(engine, windows),
            "sandbox_start_s": _mean([t.sandbox_start_s for t in kept]),
            "exec_s": _mean([turn.exec_s for t in kept for turn in t.turns]),
            "verify_s": _mean([t.verify_s for t in kept if t.end == "submit"]),
            "reward_mean": _mean(rewards),
            "turns_mean": _mean([float(len(t.turns)) for t in kept]),
            "groups_degenerate": degenerate,
            "groups_dropped": sum(g.dropped for g in batch.groups),
            "trajectories": len(kept),
            "tokens_trained": trained,
            "tokens_generated": generated,
            "staleness_mean": sum(a * n for a, n in ages) / max(1, trained),
            "staleness_max": max((a for a, _ in ages), default=0),
            "gradient_norm": stats.gradient_norm,
            "gradient_clipped": int(stats.clipped),
            "learning_rate": stats.learning_rate,
            "ledger_buffers_peak": stats.ledger_buffers_peak,
            "ledger_bytes_peak": stats.ledger_bytes_peak,
            "budget_spent": self.budget.spent,
            "release": self.release,
            "release_why": self.release_why,
            "decide_s": self.decide_s,
            **self._overlap(batch, stats, timeline),
            **{name: getattr(self._figures, name, None) for name in PARITY_COLUMNS},
        }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
