"""The nouns and seams of training: what schedules, engines, learners and clocks agree on.

Tensor-free on purpose: this module is imported by every process and by the configuration check.
Environment-side nouns are re-exported from environments.protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from environments.protocols import (
    Environment,
    ExecResult,
    InfrastructureError,
    InfrastructureKind,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Submission,
    Task,
    UsageError,
    Verdict,
)
from environments.values import value

__all__ = [
    "Batch", "Clock", "Completion", "Engine", "Environment", "Event", "ExecResult", "Flow",
    "FlowRun", "FoldSpec", "Generation", "Group", "GroupClosed", "InfrastructureError",
    "Interval", "Learner", "ParityFigures", "Release", "RewardArrived", "Sandbox",
    "SandboxProvider", "SandboxSpec", "Schedule", "Sink", "StepStats", "Submission", "Task",
    "TeacherScores", "Trajectory", "TrajectoryFinished", "TrajectoryLost", "Turn", "TurnCosts",
    "TurnFinished", "TurnGenerated", "TurnStats", "UsageError", "Verdict", "VersionSpan",
]  # fmt: skip

if TYPE_CHECKING:
    from harness.objectives.ratios import RatioSums
    from harness.timings import History, PassCost

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Release = Literal["batch", "group", "reward", "submit", "turn", "auto"]


@value
class VersionSpan:
    """Generated tokens [start, end) of a trajectory came from learner version `version`."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class Turn:
    """One action and the observation it caused; token offsets into the trajectory, times in
    seconds on the run's clock. `exec_s` is the tool call alone, `waited_s` of it was no command's
    time but rollout.tool_wait's."""

    action_start: int
    action_end: int
    started_s: float
    generated_s: float
    finished_s: float = 0.0
    exec_s: float = 0.0
    waited_s: float = 0.0
    exit_code: int | None = None
    timed_out: bool = False
    out_of_memory: bool = False


@dataclass
class TeacherScores:
    """A teacher's log-probabilities of N generated tokens in their order, at the temperature that
    they were sampled at; where asked for, its K likeliest tokens at each of the N places."""

    logprobs_N: list[float] = field(default_factory=list)
    top_tokens_NK: list[list[int]] = field(default_factory=list)
    top_logprobs_NK: list[list[float]] = field(default_factory=list)

    def extend(self, later: TeacherScores) -> None:
        """Append those of the tokens that follow."""
        self.logprobs_N += later.logprobs_N
        self.top_tokens_NK += later.top_tokens_NK
        self.top_logprobs_NK += later.top_logprobs_NK

    def cut(self, start: int, end: int) -> TeacherScores:
        """Those of the generated tokens [start, end)."""
        return TeacherScores(
            self.logprobs_N[start:end],
            self.top_tokens_NK[start:end],
            self.top_logprobs_NK[start:end],
        )


EndReason = Literal["submit", "turn_limit", "token_limit", "context_limit", "time_limit"]


@dataclass
class Trajectory:
    """One agent's life on one task: exactly the tokens that the engine saw and made.

    `tokens_T`, `action_mask_T` (1 on generated tokens) and `behaviour_logprobs_T` (0 elsewhere)
    have the same length. `reward` is None until the verdict; `infrastructure_error` is the kind of
    the failure that lost it (then reward stays None). `teacher` has the scores of its generated
    tokens under objective=opd: of a prefix of them while it runs, of all when it has finished.
    `rewritten_at` is where the agent's context was rewritten (history elided): from there on the
    tokens are a sequence of its own, a whole new prompt first; what that repeats of earlier actions
    is not scored again. `part_of` is |o_i| of the whole trajectory where this is a part of one: a
    parity check's control makes some.
    """

    trajectory_id: str
    task_id: str
    difficulty: str
    group: int
    index: int
    seed: int
    attempt: int = 0
    tokens_T: list[int] = field(default_factory=list)
    action_mask_T: list[int] = field(default_factory=list)
    behaviour_logprobs_T: list[float] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reward: float | None = None
    end: EndReason | None = None
    infrastructure_error: str | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    started_s: float = 0.0
    sandbox_start_s: float = 0.0
    finished_s: float = 0.0
    reward_s: float = 0.0
    verify_s: float = 0.0
    teacher: TeacherScores | None = None
    rewritten_at: list[int] = field(default_factory=list)
    part_of: int | None = None

    @property
    def action_tokens(self) -> int:
        """|o_i|: the number of generated tokens."""
        return self.action_mask_T.count(1)

    @property
    def verdict_reward(self) -> float | None:
        """The verifier's own reward, where `reward` is less a penalty."""
        return self.report.get("verdict_reward", self.reward)


@dataclass
class Group:
    """The trajectories of one task in one batch. `trajectories` holds the survivors, in index
    order; a group whose retry limit was exhausted is `dropped` whole, by every schedule alike.
    `version` is the newest that the engine had when the group began: none of its tokens is older.
    """

    group: int
    task_id: str
    difficulty: str
    trajectories: list[Trajectory] = field(default_factory=list)
    dropped: bool = False
    version: int = 0


@value
class TurnGenerated:
    """The tokens of a turn's action are there; its tool call runs."""

    trajectory: Trajectory
    turn: int

    @property
    def tokens(self) -> int:
        """How many of the trajectory's tokens are there; it goes on meanwhile."""
        return self.trajectory.turns[self.turn].action_end


@value
class TurnFinished:
    """Its tool call has ended as well."""

    trajectory: Trajectory
    turn: int


@value
class TrajectoryFinished:
    """The tokens are fixed; the verifier may still run."""

    trajectory: Trajectory


@value
class RewardArrived:
    trajectory: Trajectory


@dataclass(frozen=True)
class GroupClosed:
    """Every trajectory of the group has its reward, or the group is dropped."""

    group: Group


@dataclass(frozen=True)
class TrajectoryLost:
    """An infrastructure failure; `final` when it will not be tried again."""

    trajectory: Trajectory
    kind: InfrastructureKind
    final: bool


Event = (
    TurnGenerated | TurnFinished | TrajectoryFinished | RewardArrived | GroupClosed | TrajectoryLost
)


class Batch(Protocol):
    """One update's rollouts, under way: K groups at fixed weights, and their events in order."""

    index: int
    version: int

    @property
    def groups(self) -> Sequence[Group]: ...

    async def next(self) -> Event | None:
        """The next event; None once every group is closed and every event was handed over."""
        ...

    def ready(self) -> list[Event]:
        """Every event already sequenced, without waiting."""
        ...


class Sink(Protocol):
    """Where a group's rollouts put what happens."""

    def emit(self, event: Event) -> None: ...

    def fail(self, error: BaseException) -> None:
        """A defect: it must reach the schedule and end the run."""
        ...


class Flow(Protocol):
    """Groups without the boundaries of batches: rollouts that go on while the learner works."""

    @property
    def open(self) -> list[Group]:
        """Begun and not closed, in order of their beginning."""
        ...

    def allow(self, groups: int) -> None:
        """How many groups may have been begun since the start, beside those that were discarded
        and any that no update of the budget could use. They begin in the order of the tasks, each
        as soon as its trajectories find room."""
        ...

    async def next(self) -> Event | None:
        """The next event; None once all that was allowed has ended and was handed over. Raises
        BudgetEnded."""
        ...

    def ready(self) -> list[Event]:
        """Every event already sequenced, without waiting."""
        ...

    def discard(self, group: Group, why: str) -> None:
        """A closed group that will not be trained on: counted by difficulty, and another one may
        begin in its place."""
        ...

    def batch(self, groups: Sequence[Group]) -> Batch:
        """Closed groups as the next update's batch, in order of their numbers."""
        ...


@value
class Generation:
    """A request to the engine. `prompt_T` is the whole context; the engine reuses the keys and
    values that session `session` already holds for a common prefix. Sampling is a pure function of
    (seed, number of tokens generated so far in the session, logits), so that arrival order and
    neighbours in the batch do not change what is sampled. `forced_T` replays recorded tokens."""

    session: str
    prompt_T: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_tokens: tuple[int, ...]
    forced_T: Sequence[int] | None = None


@value
class Completion:
    """Generated tokens (the stop token included), log-probabilities at the sampling temperature and
    the learner versions that made them (spans relative to the first generated token)."""

    tokens_T: list[int]
    logprobs_T: list[float]
    version_spans: list[VersionSpan]
    finish: Literal["stop", "length"]


@value
class Interval:
    """A resource was busy from start_s to end_s (seconds of the system's monotonic clock)."""

    resource: str
    name: str
    start_s: float
    end_s: float
    args: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """Where tokens come from."""

    async def generate(self, request: Generation) -> Completion: ...

    async def release(self, session: str) -> None:
        """Forget a session's keys and values."""
        ...

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        """Load weights; keys and values of older ones are not reused. `in_flight`: between two
        tokens of what is being generated; otherwise requests under way end with the old weights,
        and later ones wait for the new. Returns when they are loaded."""
        ...

    async def drain_intervals(self) -> list[Interval]:
        """Busy intervals since the last call."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class TurnStats:
    """What an update's turn gradients came to: trajectories that were begun while they ran, inputs
    whose graphs were kept and inputs that were run again at the end, how often memory did not allow
    what was meant (`fallback` is the first, in words), and the most bytes held between two verbs.
    """

    trajectories: int
    retained_tokens: int
    rerun_tokens: int
    fallbacks: int
    fallback: str
    live_bytes_peak: int


@dataclass(frozen=True)
class TurnCosts:
    """Seconds of passes of one sequence, measured side by side at start: forward and backward pass
    of a whole one, a turn's forward pass with and without a graph, the backward pass of a kept
    graph, and a turn's forward and backward pass at the end. `retain_from`: turns of fewer tokens
    are not kept; `live_bytes` a token of a kept graph takes."""

    whole: PassCost
    kept_forward: PassCost
    bare_forward: PassCost
    backward: PassCost
    rerun: PassCost
    retain_from: int
    live_bytes: float


@dataclass(frozen=True)
class StepStats:
    """One optimizer step. `gradient_norm` is before clipping, after the normaliser. The peaks are
    the largest of a rank. One ledger buffer takes `buffer_bytes` at most, over all ranks;
    `free_bytes` were left where ledgers lie (None: not known). `ratios` are those of importance
    weights, over all ranks; None without such weights, or where no token was scored. `turns` and
    `turn_costs` are those of a learner that takes turns, and of one that has measured them."""

    version: int
    gradient_norm: float
    clipped: bool
    learning_rate: float
    ledger_buffers_peak: int
    ledger_bytes_peak: int
    buffer_bytes: int | None = None
    free_bytes: int | None = None
    ratios: RatioSums | None = None
    turns: TurnStats | None = None
    turn_costs: TurnCosts | None = None


@dataclass(frozen=True)
class ParityFigures:
    """One checked update (math.md section 6): relative gradient error of the schedule's update
    against the synchronous one and, after one optimizer step along each, the parameter gap; both
    with their control. None where the synchronous update is zero."""

    gradient_relative_error: float | None
    control_relative_error: float | None
    parameter_gap: float | None
    control_parameter_gap: float | None


@dataclass(frozen=True)
class FoldSpec:
    """A closed group's coefficients: trajectory id -> (reward, advantage), survivors only."""

    group: int
    coefficients: Mapping[str, tuple[float, float]]


class Learner(Protocol):
    """The few verbs that all schedules need. Gradients never leave the learner's processes."""

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        """Add coefficient x score gradient of each trajectory to the update's total."""
        ...

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        """Compute score gradients into the ledger. With its reward known a trajectory is committed
        at once; otherwise it stays pending until `commit`."""
        ...

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        """Rank -> a running trajectory and how many of its tokens are there: on each of these ranks
        the forward pass of the turns that it has finished, as far as it was not done. A
        trajectory's turns stay on the rank of its first. `accumulate` or `capture` does the
        rest, there."""
        ...

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        """Throw away what `extend` made of trajectories that enter no update."""
        ...

    async def turn_settings(self) -> Mapping[str, int | None] | None:
        """What was measured at start and decides how turns are passed; None where none are."""
        ...

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Each finished trajectory's sum of log policy - log reference over its action tokens."""
        ...

    async def commit(self, trajectory_id: str, reward: float) -> None: ...

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        """Throw pending captures away whole. Committed ones are final."""
        ...

    async def fold(self, spec: FoldSpec) -> None:
        """Turn a closed group's ledger into its policy-gradient contribution, and free the
        ledger."""
        ...

    async def drop(self, group: int) -> None:
        """Free a group's ledger without folding it (dropped, or all advantages are zero)."""
        ...

    async def step(self, normaliser: float) -> StepStats:
        """total / normaliser -> clip -> optimizer; the totals and ledgers must then be empty."""
        ...

    async def parity_begin(self, normaliser: float) -> None:
        """Set the accumulated update aside; what `accumulate` makes now is compared with it."""
        ...

    async def parity_add(self) -> None:
        """Compare what was accumulated since, and clear it; the first is the reference."""
        ...

    async def parity_end(self) -> ParityFigures:
        """Put the update back that was set aside."""
        ...

    async def publish(self) -> tuple[str, int]:
        """Write the weights; returns (path, version)."""
        ...

    async def drain_intervals(self) -> list[Interval]: ...

    async def close(self) -> None: ...


class Spawned(Awaitable[T_co], Protocol[T_co]):
    """What runs beside others; awaiting it gives its result, or raises its error."""

    def cancel(self) -> Any:
        """Raise a cancellation where it waits."""
        ...


class Clock(Protocol):
    """Wall or virtual time, and the only way to run things side by side."""

    kind: Literal["wall", "virtual"]
    origin_s: float
    """When the run began, in seconds of the clock that intervals are told in."""

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def resume(self, now_s: float) -> None:
        """A run goes on that has come to `now_s`: its time begins there, before anything does."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]: ...

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> Spawned[T]: ...

    async def cancel_all(self) -> None:
        """Cancel what was spawned and still runs, and wait until each has cleaned up."""
        ...

    def queue(self) -> Any:
        """An unbounded first-in first-out queue with put_nowait, get, get_nowait, empty."""
        ...

    def semaphore(self, value: int) -> AbstractAsyncContextManager[Any]:
        """At most `value` may be inside at once; who came first goes first."""
        ...

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        """Raises TimeoutError out of its block once so many seconds have gone by."""
        ...


class Run(Protocol):
    """What a schedule is given: everything shared, nothing that is the schedule's own."""

    learner: Learner
    ranks: int
    """How many chunks the learner works on side by side."""
    timings: History
    """What the last updates measured."""

    def decided(self, release: Release, why: str) -> None:
        """The coming batch is played at this rung of the ladder; for the record."""
        ...

    def batches(self) -> Any:
        """Async iterator of batches until the budget ends; each starts with the newest published
        weights. Asking for the next one closes the previous."""
        ...

    def coefficients(self, group: Group) -> dict[str, tuple[Trajectory, float]]:
        """Trajectory id -> (trajectory, advantage) of what a closed group adds to the update; empty
        where it adds nothing: dropped, or degenerate under an objective without reward-independent
        terms. Trajectories that the objective masks are left out."""
        ...

    def enters(self, trajectory: Trajectory) -> bool:
        """Whether the objective trains on this finished trajectory, whatever its reward."""
        ...

    def matters(self, advantage: float) -> bool:
        """Whether a trajectory of this advantage has a gradient: not at 0, unless the objective has
        reward-independent terms."""
        ...

    def chunks(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """Pack trajectories, sorted by length, into backward passes of at most chunk_tokens."""
        ...

    def rounds(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """The same chunks, up to `ranks` of them together: what to hand over at once."""
        ...

    async def step(self, batch: Batch) -> StepStats:
        """One optimizer step with the batch's normaliser Z (math.md section 1: known when every
        group is closed), after the parity check where one is due."""
        ...

    async def finish_update(self, batch: Batch, stats: StepStats) -> None:
        """Publish the weights to the engine and record the update."""
        ...


class FlowRun(Run, Protocol):
    """A Run for schedules that do not work batch by batch."""

    groups_per_batch: int
    version: int
    """The newest published weights."""

    def flow(self) -> Flow:
        """The run's groups as a stream."""
        ...


class Schedule(Protocol):
    """One schedule: an async function over batches and their events. It awaits protocol verbs
    only. One that has `hears_turns = False` is handed neither TurnGenerated nor TurnFinished, which
    are most of a run's events; the others are handed all."""

    @property
    def name(self) -> str: ...

    @property
    def release(self) -> Release | None: ...

    async def run(self, run: Run) -> None: ...
