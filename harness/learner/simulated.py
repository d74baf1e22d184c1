"""A learner on paper: every verb takes what a cost model says, on every rank that works for it.

Whole trajectories go to ranks, and into passes, by the rules of the real learner
(harness/learner/client.py); gradients are counted where the real one holds them
(harness/learner/counted.py), and a verb out of order is refused as there. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from harness.contention import Cores, Workbench
from harness.learner.counted import CountedLedger
from harness.learner.held_turns import HeldTurns
from harness.learner.placement import alike_together, at_home, parts, taken
from harness.packing import pack
from harness.protocols import FoldSpec, Interval, ParityFigures, StepStats, Trajectory
from harness.timeline import blocked
from harness.virtual import VirtualClock

PASSES = ("accumulate", "capture", "extend", "finish")  # what shared cores slow down
# What a rank does in a verb, one after the other: its name, its seconds, what is said of it.
Work = list[tuple[str, float, Mapping[str, Any]]]


class LearnerCosts(Protocol):
    """The part of a cost model (harness.costs) that a learner needs; seconds of one rank."""

    def backward_s(self, lengths: Sequence[int]) -> float: ...

    def forward_s(self, lengths: Sequence[int]) -> float: ...

    def fold_s(self, buffers: int) -> float: ...

    def capture_overhead_s(self, trajectories: int) -> float: ...

    def step_s(self) -> float: ...

    def publish_s(self) -> float: ...

    def gradient_bytes(self) -> int: ...

    @property
    def recomputes(self) -> bool:
        """Whether a backward pass runs the forward pass again."""
        ...

    @property
    def context_token_bytes(self) -> float:
        """Of one token's keys and values."""
        ...


class SimulatedLearner:
    """The Learner protocol without weights. `chunk_tokens` bounds a rank's passes where there are
    several ranks, as for the real one, or where it has to `repack` what callers packed. Colocated,
    the devices come from the engine before an update's first work and go back after its last,
    `switch_s` each way. On `cores` that others share, passes take longer while those are at
    work. A rank holds at most `max_live_bytes` of running trajectories (None: without a bound)."""

    def __init__(
        self,
        costs: LearnerCosts,
        clock: VirtualClock,
        *,
        ranks: int,
        chunk_tokens: int,
        learning_rate: float,
        form: str,
        bucket_cap: int,
        switch_s: float = 0.0,
        cores: Cores | None = None,
        repack: bool = False,
        max_live_bytes: int | None = None,
    ) -> None:
        self._costs, self._clock, self._ranks = costs, clock, ranks
        self._chunk_tokens = chunk_tokens if ranks > 1 or repack else None
        self._learning_rate = learning_rate
        self._ledgers = [
            CountedLedger(form, bucket_cap, costs.gradient_bytes()) for _ in range(ranks)
        ]
        self._holder: dict[str, int] = {}  # captured trajectory -> the rank whose ledger has it
        self._holds: dict[int, set[int]] = {}  # group -> ranks
        self._held = HeldTurns(ranks, costs.context_token_bytes, max_live_bytes)
        self._turn = clock.semaphore(1)  # a verb at a time, in the order of asking
        self._intervals: list[Interval] = []
        self._switch_s = switch_s
        self._here = False  # whether shared devices are the learner's
        self._shared = None if cores is None else Workbench(cores, clock)
        self._names = [f"learner/{rank}" for rank in range(ranks)]
        self._version = 0

    # -- time --------------------------------------------------------------------------------------

    async def _work(self, ranks: Mapping[int, Work]) -> None:
        """Ranks side by side, until the last is done."""
        if not self._here:
            await self._switch(True)
        start_s, slower = self._clock.time_s, 1.0
        longest_s = max(
            (math.fsum(took_s for _, took_s, _ in w) for w in ranks.values()), default=0.0
        )
        passes = any(name in PASSES for work in ranks.values() for name, _, _ in work)
        if self._shared is not None and passes and longest_s:
            await self._shared.work(longest_s)
            slower = (self._clock.time_s - start_s) / longest_s
        else:
            await self._clock.sleep(longest_s)
        for rank, work in ranks.items():
            from_s = start_s
            for name, took_s, args in work:
                until_s = from_s + took_s * slower
                self._intervals.append(Interval(self._names[rank], name, from_s, until_s, args))
                from_s = until_s

    async def _switch(self, here: bool) -> None:
        self._here = here
        if self._switch_s:
            start_s = self._clock.time_s
            await self._clock.sleep(self._switch_s)
            end_s = self._clock.time_s
            self._intervals += [
                Interval(blocked(name), "switch", start_s, end_s) for name in self._names
            ]

    async def _everywhere(self, name: str, seconds: float) -> None:
        await self._work({rank: [(name, seconds, {})] for rank in range(self._ranks)})

    def _passes_of(self, name: str, rows: Sequence[Trajectory], more_s: float = 0.0) -> Work:
        """Forward and backward pass of these rows, and a pass of its own for each whose turns were
        passed forward already: what they took is not done again. `more_s` comes to it once."""
        costs, work = self._costs, Work()
        begun = {i: n for t in rows if (n := self._held.take(i := t.trajectory_id))}
        if others := [t for t in rows if t.trajectory_id not in begun]:
            took_s = costs.backward_s([len(t.tokens_T) for t in others])
            work.append((name, took_s, _described(others)))
        for t in rows:
            if done := begun.get(t.trajectory_id):
                whole_s = costs.backward_s([len(t.tokens_T)])
                took_s = whole_s - costs.forward_s([done]) + costs.forward_s([0])  # a pass again
                said = _described([t]) | {"whole_s": whole_s}
                work.append(("finish", max(0.0, took_s), said))
        last, took_s, said = work[-1]
        return [*work[:-1], (last, took_s + more_s, said)]

    def _shares(self, rows: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """Ranks keep what they have begun."""
        homes = self._held.homes
        if any(t.trajectory_id in homes for t in rows):
            return at_home(rows, self._ranks, homes)
        return taken(rows, self._ranks)

    # -- the verbs ---------------------------------------------------------------------------------

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        kept = [t for t, c in zip(trajectories, coefficients, strict=True) if c != 0.0]
        async with self._turn:
            shares = [self._passes(share) for share in self._shares(kept)]
            for passes in zip_longest(*shares, fillvalue=()):
                busy = {rank: rows for rank, rows in enumerate(passes) if rows}
                await self._work(
                    {rank: self._passes_of("accumulate", rows) for rank, rows in busy.items()}
                )

    def _passes(self, share: list[Trajectory]) -> list[list[Trajectory]]:
        return [share] if self._chunk_tokens is None else pack(share, self._chunk_tokens)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        async with self._turn:
            known = {t.trajectory_id: t for t in trajectories}
            shares = [list(trajectories)]
            if self._ranks > 1:
                shares = self._shares(alike_together(trajectories))
            passes = [parts(share, self._chunk_tokens) for share in shares]
            for slot in zip_longest(*passes):
                busy = {
                    rank: [known[i] for i in part.trajectory_ids]
                    for rank, part in enumerate(slot)
                    if part is not None
                }
                each_s = self._costs.capture_overhead_s(1)
                await self._work(
                    {rank: self._passes_of("capture", rows, each_s) for rank, rows in busy.items()}
                )
                for rank, part in enumerate(slot):
                    if part is not None:
                        self._hold(rank, part.group, part.trajectory_ids, part.reward)

    def _hold(self, rank: int, group: int, names: Sequence[str], reward: float | None) -> None:
        self._ledgers[rank].capture(group, names)
        self._holder |= dict.fromkeys(names, rank)
        self._holds.setdefault(group, set()).add(rank)
        if reward is not None:
            self._ledgers[rank].commit(names, reward)

    def _ledger(self, name: str) -> CountedLedger:
        """Rank 0 answers for what nobody holds."""
        return self._ledgers[self._holder.get(name, 0)]

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        """Forward passes of new turns behind those that have had theirs, ranks side by side."""
        async with self._turn:
            busy: dict[int, Work] = {}
            for rank, (trajectory, tokens) in turns.items():
                before = self._held.extend(rank, trajectory.trajectory_id, tokens)
                if before is not None:
                    busy[rank] = [("extend", self._extend_s(before, tokens), {})]
            if busy:
                await self._work(busy)

    def _extend_s(self, before: int, tokens: int) -> float:
        forward_s = self._costs.forward_s
        if not before:
            return forward_s([tokens])
        return max(0.0, forward_s([tokens]) - forward_s([before]) + forward_s([0]))  # another pass

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        for name in trajectory_ids:
            self._held.forget(name)

    async def turn_settings(self) -> Mapping[str, int | None] | None:
        """Nothing was measured."""
        return None

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Refused by harness.simulation: there are no log-probabilities."""
        raise ValueError("reference_kl: a simulated learner has no reference")

    async def commit(self, trajectory_id: str, reward: float) -> None:
        """Its time is in the capture's."""
        async with self._turn:
            self._ledger(trajectory_id).commit([trajectory_id], reward)

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        async with self._turn:
            for name in trajectory_ids:
                self._ledger(name).discard([name])
                self._holder.pop(name, None)

    async def fold(self, spec: FoldSpec) -> None:
        async with self._turn:
            self._holds.pop(spec.group, None)
            # Of what is folded: a rank may hold the group no more, after a discard.
            ranks = sorted({self._holder[n] for n in spec.coefficients if n in self._holder} or {0})
            held = {rank: self._ledgers[rank] for rank in ranks}
            seconds = {
                rank: self._costs.fold_s(ledger.fold(spec.group, spec.coefficients))
                for rank, ledger in held.items()
            }
            said = {"groups": [spec.group]}
            await self._work({rank: [("fold", took_s, said)] for rank, took_s in seconds.items()})

    async def drop(self, group: int) -> None:
        async with self._turn:
            for rank in self._holds.pop(group, ()):
                self._ledgers[rank].drop(group)

    async def step(self, normaliser: float) -> StepStats:
        """There is no gradient, so that its norm is no number."""
        async with self._turn:
            for ledger in self._ledgers:
                ledger.end_of_update()
            turns = self._held.end_of_update(self._costs.recomputes)
            await self._everywhere("step", self._costs.step_s())
            self._version += 1
            self._holder.clear()
            self._holds.clear()
            stats = StepStats(
                version=self._version,
                gradient_norm=math.nan,
                clipped=False,
                learning_rate=self._learning_rate,
                ledger_buffers_peak=max(ledger.buffers_peak for ledger in self._ledgers),
                ledger_bytes_peak=max(ledger.bytes_peak for ledger in self._ledgers),
                buffer_bytes=self._costs.gradient_bytes(),
                turns=turns,
            )
            for ledger in self._ledgers:
                ledger.buffers_peak = 0
            return stats

    async def publish(self) -> tuple[str, int]:
        """All ranks give their weights; there is no file behind the name."""
        async with self._turn:
            await self._everywhere("publish", self._costs.publish_s())
            await self._switch(False)
            return f"virtual-weights-{self._version:06d}", self._version

    async def parity_begin(self, normaliser: float) -> None:
        raise ValueError("parity.every: a simulated learner has no gradients to compare")

    async def parity_add(self) -> None:
        await self.parity_begin(0.0)

    async def parity_end(self) -> ParityFigures:
        raise ValueError("parity.every: a simulated learner has no gradients to compare")

    async def drain_intervals(self) -> list[Interval]:
        drained, self._intervals = self._intervals, []
        return drained

    async def save(self, folder: str) -> dict[str, Any]:
        """For a checkpoint at the end of an update, when no turns are held; there are no weights to
        write."""
        return {"version": self._version}

    async def restore(self, folder: str, state: Mapping[str, Any]) -> None:
        self._version = state["version"]

    async def close(self) -> None:
        """Nothing is held."""


def _described(rows: Sequence[Trajectory]) -> dict[str, Any]:
    """What the real learner says of a pass."""
    lengths = [len(t.tokens_T) for t in rows]
    return {
        "trajectories": [t.trajectory_id for t in rows],
        "groups": sorted({t.group for t in rows}),
        "tokens": sum(lengths),
        "padded": len(lengths) * max(lengths),
    }
