"""The real engine in virtual time: tokens that a policy samples, in the time of the simulated one.

How long a turn takes is the workload's: so many tokens of context, so many to make. So nothing of a
request has to be sampled before it is charged to end. When the first of those under way ends, all
of them are sampled together, in one batch: that is what makes it fast, and what is in the batch is
a function of virtual time alone. New weights come between turns; what runs on any replica is
sampled before they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.contention import Cores
from harness.engines.simulated import DecodeCosts, Replica, Request, SimulatedEngine
from harness.engines.torch_engine import TorchEngine
from harness.protocols import Completion, Generation, Interval
from harness.virtual import Future, VirtualClock


@dataclass(eq=False)
class _Asked:
    """`paper` is its place in virtual time."""

    paper: Request
    generation: Generation
    completion: Completion | None = None

    @property
    def begun(self) -> bool:
        """Whether its tokens come from the weights that its replica has had since it joined."""
        return self.paper.running or self.paper.answer.done


class ChargedReplica(Replica):
    """Says when its weights are about to change."""

    engine: ChargedEngine

    def _swap(self, version: int) -> None:
        self.engine.load(version)
        super()._swap(version)


class ChargedEngine(SimulatedEngine):
    """The Engine protocol; `expect` has to be told of each request before it is made."""

    REPLICA = ChargedReplica

    def __init__(
        self,
        costs: DecodeCosts,
        clock: VirtualClock,
        real: TorchEngine,
        *,
        replicas: int,
        slots: int,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(costs, clock, replicas=replicas, slots=slots, cores=cores)
        for replica in self._replicas:
            assert isinstance(replica, ChargedReplica)
            replica.engine = self
        self._real = real
        self._expected: dict[str, tuple[int, int]] = {}
        self._asked: dict[str, _Asked] = {}  # by session, in order of asking
        self._path, self._loaded = "", 0

    def expect(self, session: str, context_tokens: int, new_tokens: int) -> None:
        """What the session's next request is charged for."""
        self._expected[session] = context_tokens, new_tokens

    async def generate(self, request: Generation) -> Completion:
        context, tokens = self._expected.pop(request.session)
        answer: Future[Completion] = Future(self._clock)
        asked = _Asked(Request(request.session, context, tokens, answer), request)
        self._asked[request.session] = asked
        self._place(request.session).submit(asked.paper)
        await answer
        if asked.completion is None:
            self._sample()
        self._asked.pop(request.session, None)
        assert asked.completion is not None
        return asked.completion

    def _sample(self) -> None:
        """The tokens of all that runs, and of what has just ended."""
        batch = [a for a in self._asked.values() if a.completion is None and a.begun]
        for asked in batch:

            def reply(completion: Completion, asked: _Asked = asked) -> None:
                asked.completion = completion

            self._real.generate(reply, asked.generation)
        while self._real.has_work():
            self._real.work()

    def load(self, version: int) -> None:
        """Before the first replica takes these weights; nothing for the others."""
        if version == self._loaded:
            return
        self._sample()
        self._real.update_weights(lambda _: None, self._path, version)
        self._loaded = version

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        if in_flight and any(asked.paper.running for asked in self._asked.values()):
            raise ValueError("schedule.partial_rollout: weights in flight would split real turns")
        self._path = path
        await super().update_weights(path, version, in_flight)

    async def release(self, session: str) -> None:
        self._expected.pop(session, None)
        self._asked.pop(session, None)
        await super().release(session)
        self._real.release(session)

    async def drain_intervals(self) -> list[Interval]:
        self._real.drain_intervals()  # of this machine
        return await super().drain_intervals()
