"""Turns in imagination: what begun trajectories cost, from passes that were measured at start."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.protocols import Trajectory, TurnCosts
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
    tokens = statistics.fmean([len(t.tokens_T) for t in trajectories] or [1])
    then_s = turns.whole.pass_s + turns.whole.token_s * tokens
    now_s = costs.capture.pass_s + costs.capture.token_s * tokens
    factor = now_s / then_s if then_s > 0 else 1.0
    scaled = {name: _times(getattr(turns, name), factor) for name in _SCALED}
    return replace(turns, **scaled)


def _times(cost: PassCost, factor: float) -> PassCost:
    return PassCost(cost.pass_s * factor, cost.token_s * factor)


@dataclass
class Begun:
    """A trajectory's turns so far, in tokens of each forward pass."""

    passed: list[int] = field(default_factory=list)

    def extend(self, costs: TurnCosts, tokens: int) -> float:
        """Seconds of the forward pass up to `tokens`."""
        new = tokens - sum(self.passed)
        self.passed.append(new)
        kept = new >= costs.retain_from
        return (costs.kept_forward if kept else costs.bare_forward).seconds(new)

    def _kept(self, costs: TurnCosts) -> list[int]:
        return [n for n in self.passed if n >= costs.retain_from]

    def live_bytes(self, costs: TurnCosts) -> float:
        return sum(self._kept(costs)) * costs.live_bytes

    def left_s(self, costs: TurnCosts, tokens: int) -> float:
        """Seconds that are left once all `tokens` are there: backward passes of kept graphs, and
        forward and backward passes of the rest."""
        kept = self._kept(costs)
        rest = tokens - sum(kept)
        passes = -(-rest // _CHUNK_TOKENS)
        rerun_s = passes * costs.rerun.pass_s + rest * costs.rerun.token_s
        return rerun_s + sum(map(costs.backward.seconds, kept))
