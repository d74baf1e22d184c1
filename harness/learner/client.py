"""The Learner protocol over worker processes, one per rank; torch-free, so the main process stays
light.

Whole trajectories go to ranks, balanced by tokens. Where every rank keeps a shard of every gradient
(fsdp, or ledgers sharded under ddp) all ranks get every verb, so that their collectives match;
otherwise a verb goes to the ranks that it concerns.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.cluster.local import Worker
from harness.cluster.protocol import MakeWorker, WorkerEnded, WorkerError
from harness.cluster.protocol import Worker as AnyWorker
from harness.learner.placement import Placement, alike_together, parts, split
from harness.objectives.ratios import merged
from harness.packing import pack
from harness.protocols import (
    FoldSpec,
    Interval,
    ParityFigures,
    StepStats,
    TeacherScores,
    Trajectory,
)


@dataclass(frozen=True)
class ScoredTokens:
    """The part of a trajectory that a learner needs: exactly the engine's tokens. `part_of` is the
    number of generated tokens of the whole trajectory where this is a part of one."""

    trajectory_id: str
    group: int
    reward: float | None
    tokens_T: list[int]
    action_mask_T: list[int]
    behaviour_logprobs_T: list[float] | None = None
    teacher: TeacherScores | None = None
    rewritten_at: list[int] = field(default_factory=list)
    part_of: int | None = None


def scored(
    trajectory: Trajectory, behaviour: bool = False, tokens: int | None = None
) -> ScoredTokens:
    """`behaviour` adds the engine's log-probabilities, which importance weights need; a teacher's
    scores are there where it has given any. The first `tokens` tokens of a running trajectory."""
    behaviour_T = trajectory.behaviour_logprobs_T if behaviour else None
    return ScoredTokens(
        trajectory_id=trajectory.trajectory_id,
        group=trajectory.group,
        reward=trajectory.reward,
        tokens_T=trajectory.tokens_T[:tokens],
        action_mask_T=trajectory.action_mask_T[:tokens],
        behaviour_logprobs_T=None if behaviour_T is None else behaviour_T[:tokens],
        teacher=trajectory.teacher,
        rewritten_at=[
            at for at in trajectory.rewritten_at if at < (tokens or len(trajectory.tokens_T))
        ],
        part_of=trajectory.part_of,
    )


class TorchLearnerClient:
    """Awaited verbs of harness.learner.torch_learner.TorchLearner in processes of their own, which
    share `threads` and the cores in `affinity` evenly; `options["placement"]` says how many there
    are. When one raises or dies, so does the verb, at once; `close` then ends the others."""

    TARGET = "harness.learner.torch_learner:TorchLearner"
    GRACE_S = 2.0  # in which a failure's cause may still come in after its consequences

    def __init__(
        self,
        options: dict[str, Any],
        threads: int,
        affinity: Sequence[int] | None = None,
        worker: MakeWorker = Worker,
    ) -> None:
        self._placement: Placement = options.get("placement") or Placement()
        self._behaviour = options["objective"].importance.kind != "none"
        self._each = threads // self._placement.ranks
        self._rendezvous = Path(options["publish_folder"]) / f".ranks-{uuid.uuid4().hex}"
        self._workers = [
            worker(
                f"learner/{rank}",
                self.TARGET,
                self._options_of(rank, options),
                threads=self._each,
                affinity=self._cores(rank, affinity),
            )
            for rank in range(self._placement.ranks)
        ]
        self._holder: dict[str, int] = {}  # captured trajectory -> the rank whose ledger has it

    def _options_of(self, rank: int, options: dict[str, Any]) -> dict[str, Any]:
        placement = self._placement.of_rank(rank, str(self._rendezvous))
        return options | {"threads": self._each, "placement": placement}

    def _cores(self, rank: int, affinity: Sequence[int] | None) -> Sequence[int] | None:
        return affinity and affinity[rank * self._each : (rank + 1) * self._each]

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    async def start(self) -> None:
        """Start all ranks; they meet through a file, which is gone afterwards."""
        try:
            await self._gather({w: w.start() for w in self._workers})
        finally:
            self._rendezvous.unlink(missing_ok=True)

    # -- many ranks --------------------------------------------------------------------------------

    async def _gather(self, calls: Mapping[AnyWorker, Any]) -> list[Any]:
        """Await what was asked of several ranks. Raises at the first failure, or with its cause
        where a peer's death made others fail: they may wait in a collective for ever."""
        tasks = [asyncio.ensure_future(call) for call in calls.values()]
        try:
            _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                await asyncio.wait(waiting, timeout=self.GRACE_S)
            errors = [t.exception() for t in tasks if t.done() and t.exception() is not None]
            for error in sorted(errors, key=lambda e: not isinstance(e, WorkerEnded)):
                raise error or WorkerError("a rank failed")
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()

    async def _ask(self, verb: str, arguments: Mapping[int, Sequence[Any]]) -> list[Any]:
        """Call a verb on some ranks, each with its own arguments."""
        workers = {self._workers[rank]: given for rank, given in arguments.items()}
        return await self._gather({w: w.call(verb, *given) for w, given in workers.items()})

    async def _all(self, verb: str, *arguments: Any) -> list[Any]:
        """The same call on every rank; answers in order of rank."""
        return await self._ask(verb, dict.fromkeys(range(self._placement.ranks), arguments))

    def _ranks_of(self, trajectory_ids: Iterable[str]) -> set[int]:
        """The ranks whose ledgers hold these captures; rank 0 answers for what nobody holds."""
        if self._placement.together:
            return set(range(self._placement.ranks))
        return {self._holder[i] for i in trajectory_ids if i in self._holder} or {0}

    # -- the verbs ---------------------------------------------------------------------------------

    def _scored(self, trajectories: Sequence[Trajectory]) -> list[ScoredTokens]:
        return [scored(t, self._behaviour) for t in trajectories]

    async def accumulate(
        self, trajectories: Sequence[Trajectory], coefficients: Sequence[float]
    ) -> None:
        known = {t.trajectory_id: c for t, c in zip(trajectories, coefficients, strict=True)}
        for passes in zip_longest(*map(self._passes, self._shares(trajectories)), fillvalue=[]):
            await self._ask(
                "accumulate",
                {
                    rank: (rows, [known[row.trajectory_id] for row in rows])
                    for rank, rows in enumerate(passes)
                    if rows or self._placement.together
                },
            )

    def _shares(self, trajectories: Sequence[Trajectory]) -> list[list[ScoredTokens]]:
        return split(self._scored(trajectories), self._placement.ranks)

    def _passes(self, share: list[ScoredTokens]) -> list[list[ScoredTokens]]:
        """A rank's backward passes: a split by tokens may put long rows beside many short ones."""
        bound = self._placement.chunk_tokens
        return [share] if bound is None or not share else pack(share, bound, self._placement.packed)

    async def capture(self, trajectories: Sequence[Trajectory]) -> None:
        rows = self._scored(trajectories)
        if self._placement.ranks == 1:
            await self._all("capture", rows)
            return
        shares = dict(enumerate(split(alike_together(rows), self._placement.ranks)))
        if self._placement.together:
            slots = list(
                zip_longest(
                    *(
                        parts(share, self._placement.chunk_tokens, self._placement.packed)
                        for share in shares.values()
                    )
                )
            )
            await self._ask("capture", {rank: (share, slots) for rank, share in shares.items()})
            return
        self._holder |= {row.trajectory_id: rank for rank, share in shares.items() for row in share}
        await self._ask("capture", {rank: (share,) for rank, share in shares.items() if share})

    async def extend(self, turns: Mapping[int, tuple[Trajectory, int]]) -> None:
        """Of one process alone: validation lets no other learner take turns."""
        trajectory, tokens = turns[0]
        await self._workers[0].call("extend", scored(trajectory, self._behaviour, tokens))

    async def abandon(self, trajectory_ids: Sequence[str]) -> None:
        await self._workers[0].call("abandon", list(trajectory_ids))

    async def turn_settings(self) -> dict[str, int | None] | None:
        """What decides which graphs are kept; None where no turns are taken."""
        return await self._workers[0].call("turn_settings")

    async def reference_kl(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Under fsdp a forward is an act of all ranks, so all compute the same."""
        rows = self._scored(trajectories)
        if self._placement.parallel == "fsdp":
            return (await self._all("reference_kl", rows))[0]
        shares = dict(enumerate(split(rows, self._placement.ranks)))
        answers = await self._ask("reference_kl", {r: (s,) for r, s in shares.items() if s})
        return [value for answer in answers for value in answer]

    async def commit(self, trajectory_id: str, reward: float) -> None:
        ranks = self._ranks_of([trajectory_id])
        await self._ask("commit", dict.fromkeys(ranks, (trajectory_id, reward)))

    async def discard(self, trajectory_ids: Sequence[str]) -> None:
        by_rank: dict[int, list[str]] = {}
        for trajectory in trajectory_ids:
            for rank in self._ranks_of([trajectory]):
                by_rank.setdefault(rank, []).append(trajectory)
            self._holder.pop(trajectory, None)
        await self._ask("discard", {rank: (ids,) for rank, ids in by_rank.items()})

    async def fold(self, spec: FoldSpec) -> None:
        await self._ask("fold", dict.fromkeys(self._ranks_of(spec.coefficients), (spec,)))

    async def drop(self, group: int) -> None:
        await self._all("drop", group)

    async def step(self, normaliser: float) -> StepStats:
        """The update is one for all ranks, and so are its figures; of the ledgers' peaks it is the
        largest of a rank."""
        stats: list[StepStats] = await self._all("step", normaliser)
        self._holder.clear()
        if len({s.gradient_norm for s in stats}) > 1:
            raise WorkerError(
                f"learner: ranks took different steps, of norms {[s.gradient_norm for s in stats]}"
            )
        return replace(
            stats[0],
            ledger_buffers_peak=max(s.ledger_buffers_peak for s in stats),
            ledger_bytes_peak=max(s.ledger_bytes_peak for s in stats),
            buffer_bytes=sum(s.buffer_bytes or 0 for s in stats),
            ratios=merged([s.ratios for s in stats]),
        )

    async def parity_begin(self, normaliser: float) -> None:
        await self._all("parity_begin", normaliser)

    async def parity_add(self) -> None:
        await self._all("parity_add")

    async def parity_end(self) -> ParityFigures:
        return (await self._all("parity_end"))[0]

    async def publish(self) -> tuple[str, int]:
        return (await self._all("publish"))[0]

    async def save(self, folder: str) -> dict[str, Any]:
        """Into a checkpoint's folder, at the end of an update; what is no tensor is returned."""
        return (await self._all("save", folder))[0]

    async def restore(self, folder: str, state: Mapping[str, Any]) -> None:
        await self._all("restore", folder, state)

    async def drain_intervals(self) -> list[Interval]:
        return [i for drained in await self._all("drain_intervals") for i in drained]

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))
