"""The Run that every schedule is given: batches under the budget, advantages, chunks, records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from harness import lengths, update_row
from harness.accounting import Ages, Trained, exchange
from harness.batch import Begin, Events, LiveBatch, start
from harness.budget import Budget
from harness.config import ParityConfig
from harness.flow import LiveFlow, Resumed
from harness.objectives.grpo import Grpo
from harness.objectives.passes import ByObjective
from harness.overlap import COLUMNS, overlap_row
from harness.packing import task_order
from harness.parity import COLUMNS as PARITY_COLUMNS
from harness.parity import ParityChecks
from harness.protocols import (
    Batch,
    Clock,
    Engine,
    Group,
    InfrastructureError,
    Learner,
    ParityFigures,
    Release,
    Sink,
    Spawned,
    StepStats,
    Task,
    Trajectory,
)
from harness.recorder import Recorder
from harness.teachers.scoring import Scoring
from harness.timeline import Timeline, Window
from harness.timings import History, UpdateTimings
from harness.update_row import Row


class Training(ByObjective):
    """One run's training loop seen from a schedule; implements the Run protocol.

    `release` is the schedule's rung until it says otherwise (`decided`, which took `decide_s` of
    the update; None where nothing was decided); `timings` may go on from
    earlier updates. `begin` starts a group's rollouts; in a flow no more than `room` trajectories
    roll out at once, and new weights are taken `in_flight` or between turns. The schedule is handed
    the events of turns where it `hears_turns`. `on_update` gets one
    row per optimizer step, `on_trajectory` every trajectory once its end is known (with its batch
    index); `boundary` is awaited at the end of every update. harness/training_state.py puts one
    back where another ended."""

    def __init__(
        self,
        *,
        learner: Learner,
        engine: Engine,
        objective: Grpo,
        budget: Budget,
        clock: Clock,
        timeline: Timeline,
        begin: Begin,
        take_intervals: Callable[[], list[Any]],
        scoring: Scoring | None = None,
        tasks: Sequence[Task],
        groups_per_batch: int,
        chunk_tokens: int,
        seed: int,
        without_padding: bool = False,
        version: int = 0,
        ranks: int = 1,
        replicas: int = 1,
        parity: ParityConfig | None = None,
        release: Release | None = None,
        timings: History | None = None,
        group_size: int = 1,
        room: int = 1,
        in_flight: bool = True,
        hears_turns: bool = True,
        on_update: Callable[[Row], None],
        on_trajectory: Callable[[Trajectory, int], None],
        boundary: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.learner = learner
        self._engine = engine
        self._objective = objective
        self.budget = budget
        self._clock = clock
        self._timeline = timeline
        self._begin_group = begin
        self._take_intervals = take_intervals
        self._scoring = scoring
        self._order = task_order(tasks, seed)
        self._met: list[Task] = []
        self.groups_per_batch = groups_per_batch
        self._group_size, self._room, self._in_flight = group_size, room, in_flight
        self._hears_turns = hears_turns
        self._chunk_tokens = chunk_tokens
        self._without_padding = without_padding
        self.ranks = ranks
        self._replicas = replicas
        self._seed = seed
        self._on_update, self._boundary = on_update, boundary
        self.recorder = Recorder(budget, timeline, groups_per_batch, on_trajectory)
        self.parity = ParityChecks(parity or ParityConfig(), learner, objective)
        self._figures: ParityFigures | None = None
        self.release: Release | None = release
        self.release_why = ""
        self._handed_s = 0.0
        self.decide_s: float | None = None
        self.timings = timings or History(separate=objective.regularised)
        self.version = version
        self.published: str | None = None
        """The file of the newest published weights; None before the first update."""
        self.updated_s = 0.0
        self.going_on = False
        self.first_batch = self.next_batch = 0
        self.live: LiveFlow | None = None
        self.resumed_flow: Resumed | None = None
        self._late = False
        self.tokens_before = 0  # generated up to the last update
        self.rows: list[Row] = []
        self.tokens_trained = 0
        self.ages = Ages()

    def _task(self, number: int) -> Task:
        """Of a group, in the seed's order."""
        while len(self._met) <= number:
            self._met.append(next(self._order))
        return self._met[number]

    def _begin(self, number: int, task: Task, seed: int, sink: Sink) -> Group:
        group = self._begin_group(number, task, seed, sink)
        self.budget.opened(group.group, self._group_size)
        return group

    async def batches(self) -> AsyncIterator[Batch]:
        """Batches until the budget ends, each with the newest published weights."""
        index, size = self.first_batch, self.groups_per_batch
        self.budget.start()
        while not self.budget.exhausted:
            tasks = [self._task(number) for number in range(index * size, (index + 1) * size)]
            batch = start(
                self._begin, index, self.version, tasks, self._seed, self._clock,
                self.recorder.hear, self._hears_turns,
            )  # fmt: skip
            if self.going_on and index == self.first_batch:  # what was lost took time as well
                batch.began_s = batch.started_s = self.updated_s
            deadline = self._deadline(batch)
            self._handed_s, self.decide_s = self._clock.now(), None
            yield batch
            if deadline is not None:
                deadline.cancel()
            index += 1

    def flow(self) -> LiveFlow:
        """The run's groups as a stream, in the order of the tasks."""
        self.budget.start()
        made = self.budget.counters.updates
        if not self.going_on:
            self.updated_s = self._clock.now()
        updates = self.budget.updates_left(self.groups_per_batch * self._group_size)
        self.live = flow = LiveFlow(
            lambda number, sink: self._begin(number, self._task(number), self._seed, sink),
            self,
            self._clock,
            self.recorder,
            group_size=self._group_size,
            room=self._room,
            most=None if updates is None else (made + updates) * self.groups_per_batch,
            turns=self._hears_turns,
            resumed=self.resumed_flow,
        )
        self._deadline(flow)
        return flow

    def _deadline(self, events: Events) -> Spawned[None] | None:
        """The end of the budget is told to what waits for these events."""
        self.budget.reaches(events.fail)
        remaining_s = self.budget.remaining_s
        if remaining_s is None:
            return None
        return self._clock.spawn(self._end(events, remaining_s), "deadline")

    async def _end(self, events: Events, remaining_s: float) -> None:
        while remaining_s > 0:  # again after a pause, which does not count
            await self._clock.sleep(max(remaining_s, 0.005))
            remaining_s = self.budget.remaining_s or 0.0
        events.fail(self.budget.ended())

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
        stats = await self.learner.step(normaliser)
        self._late = self.budget.remaining_s == 0
        return stats

    async def finish_update(self, batch: Batch, stats: StepStats) -> None:
        """Publish and record. Raises BudgetEnded where a time budget ended before the step: such an
        update is discarded whichever schedule made it; InfrastructureError where nothing is left
        of the batch."""
        if self._late:
            raise self.budget.ended()
        if all(group.dropped for group in batch.groups):
            raise InfrastructureError(
                self.recorder.last_loss,
                f"every group of batch {batch.index} lost a trajectory for good",
            )
        path, version = await self.learner.publish()
        with exchange(self._timeline, self.ranks, self._replicas):
            await self._engine.update_weights(path, version, self._in_flight)
        self.version, self.published = version, path
        drained = await self.drain()
        self.budget.updated(batch.groups)
        row = self._row(batch, stats, drained)
        self.rows.append(row)
        self._on_update(row)
        self.updated_s = self._clock.now()
        self.next_batch = batch.index + 1
        lengths.forget(batch.groups)
        if self._boundary is not None:
            await self._boundary()

    async def drain(self) -> Timeline:
        """What engine and learner were busy with since the last call; kept, as is what sandboxes
        were."""
        drained = Timeline(self._timeline.origin_s)  # whole, however the run's is kept
        drained.extend(await self.learner.drain_intervals())
        drained.extend(await self._engine.drain_intervals())
        if self._scoring is not None:
            drained.extend(await self._scoring.drain_intervals())
        self._timeline.extend(drained.intervals)
        self._timeline.extend(self._take_intervals())
        return drained

    @property
    def windows(self) -> list[Window]:
        """The budget's windows on the machine's clock; none before training has begun."""
        return self._absolute(self.budget.training)

    def _absolute(self, windows: Sequence[Window]) -> list[Window]:
        origin_s = self._timeline.origin_s
        return [(origin_s + start, origin_s + end) for start, end in windows]

    def _overlap(self, batch: LiveBatch, stats: StepStats, timeline: Timeline) -> Row:
        """Keep what this update measured, and compare it with its bounds. A flow has none: there
        the learner works on rollouts of other updates meanwhile."""
        if self.release is None:
            return dict.fromkeys(COLUMNS)
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
            turn_costs=stats.turn_costs,
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
        generated = self.budget.counters.tokens - self.tokens_before
        self.tokens_before = self.budget.counters.tokens
        stepped_s = max(i.end_s for i in timeline.intervals if i.name == "step")
        last_s = max(
            batch.last_event_s, batch.started_s
        )  # while other updates were made, it waited
        tail_s = self.budget.between_s(last_s, stepped_s - timeline.origin_s)
        kept = [t for g in batch.groups for t in g.trajectories]
        consumed = [Trained.at(batch.version, t.version_spans) for t in kept]
        self.ages.add(consumed)
        content = update_row.content(batch, consumed, self._objective)
        self.tokens_trained += content["tokens_trained"]
        return {
            "update": self.budget.counters.updates,
            "version": stats.version,
            "started_s": batch.started_s,
            "ended_s": now,
            "per_update_s": self.budget.between_s(batch.started_s, now),
            "rollout_s": batch.last_event_s - batch.began_s,
            "tail_s": tail_s,
            "tokens_generated": generated,
            **update_row.times(timeline, self.ranks, self._replicas, windows),
            **content,
            **update_row.step(stats),
            "budget_spent": self.budget.spent,
            "release": self.release,
            "release_why": self.release_why,
            "decide_s": self.decide_s,
            **self._overlap(batch, stats, timeline),
            **{name: getattr(self._figures, name, None) for name in PARITY_COLUMNS},
        }
