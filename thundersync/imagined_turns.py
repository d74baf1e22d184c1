"""Turns in imagination: what begun trajectories cost, from passes that were measured at start."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.protocols import Trajectory, TurnCosts
from harness.sequences import padded, spans
from harness.timings import Costs, PassCost

_SCALED = ("whole", "kept_forward", "bare_forward", "backward", "rerun")
_CHUNK_TOKENS = 512  # of a pass that runs turns again (segments.chunk_tokens)


def lengths(trajectory: Trajectory) -> Iterator[int]:
    """Tokens of each turn: its observation and its action."""
    ends = [0, *(turn.action_end for turn in trajectory.turns)]
    return (end - start for start, end in itertools.pairwise(ends))


def beside(costs: Costs, trajectories: Sequence[Trajectory]) -> TurnCosts:
    """Costs of turns on the scale of this run's own passes: what was measured at start, times what
    a whole trajectory takes now over what it took then. Raises ValueError where nothing was
    measured."""
    turns = costs.turns
    if turns is None:
        raise ValueError("passes of turns were not measured")
    tokens = statistics.fmean([padded([t]) for t in trajectories] or [1])
    then_s = turns.whole.pass_s + turns.whole.token_s * tokens
    now_s = costs.capture.pass_s + costs.capture.token_s * tokens
    factor = now_s / then_s if then_s > 0 else 1.0
    scaled = {name: _times(getattr(turns, name), factor) for name in _SCALED}
    return replace(turns, **scaled)


def _times(cost: PassCost, factor: float) -> PassCost:
    return PassCost(cost.pass_s * factor, cost.token_s * factor)


@dataclass
class Begun:
    """A trajectory of which `fed` tokens were passed on: `passed` has the forward passes of its
    last sequence. Earlier sequences are done."""

    fed: int = 0
    passed: list[int] = field(default_factory=list)

    def extend(self, costs: TurnCosts, trajectory: Trajectory, tokens: int) -> float:
        """Seconds of the passes up to `tokens`: forward, and backward of what is complete."""
        seconds = 0.0
        for start, end in spans(trajectory):
            at, end = max(start, self.fed), min(end, tokens)
            if at >= end:
                continue
            if at == start:
                seconds += self._left_s(costs, sum(self.passed))
                self.passed = []
            kept = end - at >= costs.retain_from
            seconds += (costs.kept_forward if kept else costs.bare_forward).seconds(end - at)
            self.passed.append(end - at)
            self.fed = end
        return seconds

    def _kept(self, costs: TurnCosts) -> list[int]:
        return [n for n in self.passed if n >= costs.retain_from]

    def live_bytes(self, costs: TurnCosts) -> float:
        return sum(self._kept(costs)) * costs.live_bytes

    def left_s(self, costs: TurnCosts, tokens: int) -> float:
        """Seconds that are left once all `tokens` are there: backward passes of kept graphs, and
        forward and backward passes of the rest."""
        return self._left_s(costs, tokens - self.fed + sum(self.passed))

    def _left_s(self, costs: TurnCosts, tokens: int) -> float:
        kept = self._kept(costs)
        rest = tokens - sum(kept)
        passes = -(-rest // _CHUNK_TOKENS)
        rerun_s = passes * costs.rerun.pass_s + rest * costs.rerun.token_s
        return rerun_s + sum(map(costs.backward.seconds, kept))


def end_s(costs: TurnCosts, trajectory: Trajectory) -> float:
    """Seconds that a trajectory leaves for its end where every turn was passed on when it was
    there."""
    begun = Begun()
    for turn in trajectory.turns:
        begun.extend(costs, trajectory, turn.action_end)
    return begun.left_s(costs, len(trajectory.tokens_T))
