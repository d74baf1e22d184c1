"""`schedule.release=auto`: the rung for the next batch, from what the last ones measured.

Every rung of the ladder (math.md section 3) is played in imagination: the schedule's own code, on
the recorded arrival times of the last few updates, with a learner whose verbs cost what this run's
cost. Captures that turn out to be for groups without a signal, single-trajectory passes and
folds are paid for there as they are in truth. The rung that ends earliest is taken; within a
hundredth of it, the one that holds less. What is assumed: arrivals do not depend on the rung, and
the next batch is like the last ones. Passes of turns were measured beside passes of whole sequences
when the learner started; where they could not be, `turn` is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from harness.config import Config
from harness.objectives.estimators import ESTIMATORS
from harness.protocols import Batch, Release, Run
from harness.sequences import padded
from harness.timings import Costs, UpdateTimings
from thundersync.imagined import ImaginedBatch, ImaginedLearner, ImaginedRun
from thundersync.imagined_turns import beside, end_s, lengths

LADDER: tuple[Release, ...] = ("batch", "group", "reward", "submit", "turn")  # less held, first
START: Release = "group"  # nothing held, nothing wasted, and never later than batch
LOOK_BACK = 3  # updates; each is played once per rung
TIE = 0.01
FREE_SHARE = 0.5  # of the free memory that ledgers may take: activations need some as well

Play = Callable[[Run, Batch, Release], Awaitable[None]]


@dataclass(frozen=True)
class Prediction:
    """One update at one rung: seconds from its batch's start to the optimizer step, the most ledger
    buffers held, seconds of captures that added nothing, the most bytes of kept graphs."""

    end_s: float
    buffers: int
    wasted_s: float
    live_bytes: float = 0.0


def predict(
    play: Play,
    run: Run,
    update: UpdateTimings,
    release: Release,
    costs: Costs,
    buffers_per_group: int = 2,
) -> Prediction:
    """Play a recorded update at `release`. `play` awaits the verbs of the imagined parts only,
    which never suspend."""
    batch = ImaginedBatch(update, turns=release == "turn")
    learner = ImaginedLearner(batch, costs, buffers_per_group, run.matters(0.0), run.ranks)
    imagined: Any = ImaginedRun(run, learner)
    coroutine = cast(Any, play(imagined, batch, release))
    try:
        coroutine.send(None)
    except StopIteration:
        end_s = max(batch.now_s, update.last_event_s) - update.started_s
        held = learner.buffers_peak, learner.wasted_s, learner.live_bytes_peak
        return Prediction(end_s, *held)
    raise RuntimeError("the schedule awaits something else than its batch and its learner")


def buffers_per_group(config: Config) -> int:
    """How many ledger buffers a group can fill: two where the affine form serves it."""
    affine = config.ledger.form != "bucket" and ESTIMATORS[config.objective.estimator].affine
    return 2 if affine else config.rollout.group_size


@dataclass(frozen=True)
class Choice:
    """A rung, and why in one line with the figures behind it."""

    release: Release
    why: str


def earliest(fitting: Sequence[Release], ends_s: Mapping[Release, float]) -> Release:
    """The first of `fitting` (what holds less comes first) that ends earliest, but for a tie."""
    best_s = min(ends_s[r] for r in fitting)
    return next(r for r in fitting if ends_s[r] <= best_s * (1 + TIE))


def choose(play: Play, run: Run, buffers: int = 2) -> Choice:
    """The rung for the next batch; `buffers` is the most that a group can fill."""
    updates, costs = run.timings.updates[-LOOK_BACK:], run.timings.costs()
    if not updates or costs is None:
        return Choice(START, f"release={START} to start with: no backward pass was measured yet")
    rungs: list[Release] = [r for r in LADDER if r != "turn" or costs.turns is not None]
    found = {r: [predict(play, run, u, r, costs, buffers) for u in updates] for r in rungs}
    buffer = updates[-1].buffer_bytes or 0
    held = {r: max(p.buffers * buffer + p.live_bytes for p in found[r]) for r in rungs}
    free = updates[-1].free_bytes
    fitting: list[Release] = [r for r in rungs if free is None or held[r] <= FREE_SHARE * free]
    ends_s: dict[Release, float] = {r: statistics.fmean(p.end_s for p in found[r]) for r in rungs}
    release = earliest(fitting, ends_s)
    refused = [r for r in rungs if r not in fitting]
    wasted = statistics.fmean(p.wasted_s for p in found[release])
    memory = f"ledgers up to {held[release] / 1e6:.0f} MB" + (
        f" of {free / 1e6:.0f} MB free" if free is not None else ""
    )
    predicted = ", ".join(f"{r} {ends_s[r]:.2f}" for r in rungs)
    return Choice(
        release,
        f"release={release}: predicted seconds to the step {predicted} (mean of the last "
        f"{len(updates)}); {_measured(run, updates, costs)}{_turns(updates, costs)}, "
        f"{wasted:.2f} s of captures wasted, "
        + memory
        + (f"; does not fit: {', '.join(refused)}" if refused else ""),
    )


def _measured(run: Run, updates: Sequence[UpdateTimings], costs: Costs) -> str:
    """What the choice rests on."""
    correlations = [c for u in updates if (c := u.arrival_correlation) is not None]
    submitted = [t for u in updates for t in u.trajectories if t.end == "submit"]
    verify_s = [t.reward_s - t.finished_s for t in submitted]
    groups = [g for u in updates for g in u.groups]
    silent = sum(not run.coefficients(g) for g in groups) / len(groups)
    correlation = f"{statistics.fmean(correlations):.2f}" if correlations else "-"
    verification = f"{statistics.fmean(verify_s):.2f} s" if verify_s else "-"
    return (
        f"arrival correlation {correlation}, pass {costs.capture.pass_s * 1e3:.1f} ms + "
        f"{costs.capture.token_s * 1e6:.0f} us a token, verification {verification}, "
        f"{silent:.0%} of groups without a signal"
    )


def _turns(updates: Sequence[UpdateTimings], costs: Costs) -> str:
    """What a trajectory of these updates leaves for the end, taken whole and by its turns."""
    trajectories = [t for u in updates for t in u.trajectories if t.turns]
    if costs.turns is None or not trajectories:
        return ""
    turns = beside(costs, trajectories)
    whole_s = statistics.fmean(costs.capture.seconds(padded([t])) for t in trajectories)
    left_s = statistics.fmean(end_s(turns, t) for t in trajectories)
    return (
        f", a trajectory's end {whole_s * 1e3:.1f} ms whole and {left_s * 1e3:.1f} ms by turns "
        f"(of {statistics.fmean(n for t in trajectories for n in lengths(t)):.0f} tokens; graphs "
        f"pay from {turns.retain_from} on)"
    )
