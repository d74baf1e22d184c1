"""An engine on paper: replicas with continuous batching, whose steps take what a cost model says.

Every running request of a replica gets a token per decode step, so that they share one virtual
service time: the tokens that a request running from the start would have. A request of k tokens
that joins at v is done at v + k, whatever joins and leaves meanwhile; an event costs O(log n), a
token nothing. Between two events a step takes what it takes at their middle: exact where the cost
is affine in the context. Reading a prompt stops the decoding of its replica; only what the replica
does not hold of it is read. Tokens are counted, not made.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from harness.contention import Cores
from harness.protocols import Completion, Generation, Interval, VersionSpan
from harness.virtual import Future, Timer, VirtualClock

_ROUNDING = 1e-9  # of a token
_KEPT = (
    "_version", "_number", "_held", "_service", "_offset", "_seen_s", "_step_s", "_reading_s",
    "_factor", "_due_s", "_timer_s", "_busy_from_s", "_generated", "_read",
)  # fmt: skip


class DecodeCosts(Protocol):
    """The part of a cost model (harness.costs) that an engine needs; seconds of one replica."""

    @property
    def context_capacity_tokens(self) -> int: ...

    def decode_step_s(self, running: int, context_tokens: float) -> float: ...

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float: ...


@dataclass(eq=False, slots=True)
class Request:
    """`joined` is the service time at which it began, `made` the tokens that spans speak for."""

    session: str
    prompt: int
    tokens: int
    answer: Future[Completion]
    joined: float = 0.0
    made: int = 0
    spans: list[VersionSpan] = field(default_factory=list)
    running: bool = False

    def note(self, version: int, until: int) -> None:
        """Tokens up to `until` came from this version."""
        if until > self.made:
            self.spans.append(VersionSpan(version, self.made, until))
            self.made = until


class Replica:
    """One model, `slots` requests at once and keys and values of `capacity` tokens, which sessions
    between two turns keep until others need the room."""

    def __init__(
        self, name: str, costs: DecodeCosts, clock: VirtualClock, slots: int, cores: Cores | None
    ) -> None:
        self._name, self._costs, self._clock, self._slots = name, costs, clock, slots
        self._cores = cores
        if cores is not None:
            cores.listen(self._changed)
        self._capacity = costs.context_capacity_tokens
        self._version = 0
        self._running: list[tuple[float, int, Request]] = []  # a heap, with what was released
        self._number = 0
        self._waiting: deque[Request] = deque()
        self._requests: dict[str, Request] = {}  # by session
        self._cached: OrderedDict[str, int] = OrderedDict()  # longest idle first
        self._held = 0  # tokens that running requests will hold at their ends, and cached ones
        self._count = 0
        self._service = 0.0  # tokens
        self._offset = 0.0  # context of all running = offset + count x service
        self._seen_s = self._step_s = 0.0
        self._reading_s = 0.0  # what is still to be read, before any decoding; alone
        self._factor = 1.0  # of shared cores, when this was planned
        self._due_s = math.inf
        self._timer: Timer | None = None
        self._timer_s = math.inf
        self._update: tuple[int, Future[None]] | None = None
        self._busy_from_s = 0.0
        self._generated = self._read = 0
        self._intervals: list[Interval] = []

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        self._requests[request.session] = request
        self._waiting.append(request)
        self._advance()
        self._admit()
        self._plan()

    def release(self, session: str) -> None:
        """Forget it. A request under way is answered with what it has so far."""
        self._held -= self._cached.pop(session, 0)
        request = self._requests.pop(session, None)
        if request is None:
            return
        if request.running:
            self._advance()
            request.note(self._version, min(request.tokens, self._made(request)))
            self._leave(request)
        else:
            self._waiting.remove(request)
        self._reply(request)
        self._admit()
        self._plan()

    def _admit(self) -> None:
        """Whoever waits joins, in order, while there is a slot and room for keys and values."""
        while self._waiting and self._update is None and self._count < self._slots:
            request = self._waiting[0]
            size = request.prompt + request.tokens
            own = self._cached.get(request.session, 0)
            while self._held - own + size > self._capacity and self._idle(request.session):
                _, tokens = self._cached.popitem(last=False)
                self._held -= tokens
            if self._held - own + size > self._capacity and self._count:
                return
            self._waiting.popleft()
            self._join(request, size)

    def _idle(self, session: str) -> bool:
        """Whether a cached session other than this can be evicted; this one becomes the newest."""
        if session in self._cached:
            self._cached.move_to_end(session)
        return len(self._cached) > (session in self._cached)

    def _join(self, request: Request, size: int) -> None:
        now = self._clock.time_s
        own = self._cached.pop(request.session, 0)
        self._held += size - own
        cached = min(own, request.prompt - 1)
        new = request.prompt - cached
        if not self._count:
            self._at_work(1)
            self._busy_from_s = now
            self._service = self._offset = 0.0
        self._reading_s += self._costs.prefill_s(new, cached)
        self._read += new
        self._count += 1
        self._number += 1
        request.running, request.joined = True, self._service
        self._offset += request.prompt - self._service
        heapq.heappush(self._running, (self._service + request.tokens, self._number, request))

    def _leave(self, request: Request) -> None:
        """Out of the batch, with the tokens that it has; the heap forgets it later."""
        self._generated += request.made
        self._count -= 1
        self._held -= request.prompt + request.tokens
        self._offset -= request.prompt - request.joined
        request.running = False
        if not self._count:
            self._running.clear()
            self._at_work(-1)
            self._close_interval()

    def _made(self, request: Request) -> int:
        return int(self._service - request.joined + _ROUNDING)

    def _reply(self, request: Request) -> None:
        tokens = cast("list[int]", range(request.made))
        finish = "stop" if request.made == request.tokens else "length"
        request.answer.set(Completion(tokens, [], request.spans, finish))

    # -- time --------------------------------------------------------------------------------------

    def _at_work(self, more: int) -> None:
        if self._cores is not None:
            self._cores.engine(more)

    def _changed(self) -> None:
        """Shared cores are busier, or less: what is left takes another time."""
        if self._count:
            self._advance()
            self._plan()

    def _advance(self) -> None:
        """Bring the service time up to now."""
        now = self._clock.time_s
        worked_s = now - self._seen_s
        if self._reading_s and worked_s:
            read_s = min(self._reading_s, worked_s / self._factor)
            self._reading_s -= read_s
            worked_s = 0.0 if self._reading_s else worked_s - read_s * self._factor
        if self._count:
            if worked_s > 0:
                self._service += worked_s / self._step_s
            if now >= self._due_s:  # exactly, whatever was rounded
                self._service = max(self._service, self._running[0][0])
        self._seen_s = now

    def _plan(self) -> None:
        """When the next request is done, as things are. A timer that rings earlier plans again:
        most requests that join make it later."""
        running = self._running
        while running and not running[0][2].running:
            heapq.heappop(running)
        if not running:
            self._due_s = math.inf
            return
        left = running[0][0] - self._service
        context = self._offset + self._count * (self._service + left / 2)
        self._step_s = self._costs.decode_step_s(self._count, context)
        if self._cores is not None:
            self._factor = self._cores.factor
            self._step_s *= self._factor
        reads_s = self._reading_s * self._factor
        self._due_s = self._clock.time_s + reads_s + max(0.0, left) * self._step_s
        if self._due_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(self._due_s, self._ring)
            self._timer_s = self._due_s

    def _ring(self) -> None:
        self._timer, self._timer_s = None, math.inf
        self._advance()
        running = self._running
        while running and running[0][0] <= self._service + _ROUNDING:
            request = heapq.heappop(running)[2]
            if request.running:
                request.note(self._version, request.tokens)
                self._leave(request)
                del self._requests[request.session]
                self._cached[request.session] = size = request.prompt + request.tokens
                self._held += size
                self._reply(request)
        if self._update is not None and not self._count:
            version, loaded = self._update
            self._update = None
            self._swap(version)
            loaded.set(None)
        self._admit()
        self._plan()

    # -- weights -----------------------------------------------------------------------------------

    def update(self, version: int, in_flight: bool) -> Future[None] | None:
        """Take new weights, now or once what runs has ended; None where they are loaded."""
        self._advance()
        if not in_flight and self._count:
            self._update = version, Future(self._clock)
            return self._update[1]
        self._swap(version)
        self._plan()
        return None

    def _swap(self, version: int) -> None:
        """No key or value of the old weights is used again: what runs is read anew."""
        for _, _, request in self._running:
            if request.running:
                request.note(self._version, self._made(request))
                context = request.prompt + request.made
                self._reading_s += self._costs.prefill_s(context, 0)
                self._read += context
        self._held -= sum(self._cached.values())
        self._cached.clear()
        self._version = version

    # -- for a checkpoint, while nothing runs ------------------------------------------------------

    def state(self) -> dict[str, float]:
        if self._requests or self._cached or self._intervals:
            raise ValueError(f"{self._name}: holds requests; only what is idle can be kept")
        return {name: getattr(self, name) for name in _KEPT}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in _KEPT:
            setattr(self, name, state[name])
        if self._timer_s < math.inf:
            self._timer = self._clock.call_at(self._timer_s, self._ring)

    # -- what it was busy with ---------------------------------------------------------------------

    def _close_interval(self) -> None:
        args = {"generated_tokens": self._generated, "prompt_tokens": self._read}
        now = self._clock.time_s
        self._intervals.append(Interval(self._name, "generate", self._busy_from_s, now, args))
        self._generated = self._read = 0
        self._busy_from_s = now

    def drain(self) -> list[Interval]:
        if self._count or self._generated:
            self._close_interval()
        drained, self._intervals = self._intervals, []
        return drained


class SimulatedEngine:
    """The Engine protocol over replicas; a session stays on the one that had fewest at first."""

    REPLICA = Replica

    def __init__(
        self,
        costs: DecodeCosts,
        clock: VirtualClock,
        *,
        replicas: int,
        slots: int,
        cores: Cores | None = None,
    ) -> None:
        """`cores` are those that it shares with others; none where it has its own."""
        self._clock = clock
        self._replicas = [
            self.REPLICA(f"engine/{i}", costs, clock, slots, cores) for i in range(replicas)
        ]
        self._loads = [0] * replicas
        self._least = [(0, i) for i in range(replicas)]  # a heap, with loads that have changed
        self._places: dict[str, int] = {}

    def _place(self, session: str) -> Replica:
        place = self._places.get(session)
        if place is None:
            load, place = heapq.heappop(self._least)
            while load != self._loads[place]:
                load, place = heapq.heappop(self._least)
            self._loads[place] += 1
            heapq.heappush(self._least, (load + 1, place))
            self._places[session] = place
        return self._replicas[place]

    async def generate(self, request: Generation) -> Completion:
        """`max_new_tokens` tokens, which is what the workload wants of this turn."""
        answer: Future[Completion] = Future(self._clock)
        self._place(request.session).submit(
            Request(request.session, len(request.prompt_T), request.max_new_tokens, answer)
        )
        return await answer

    async def release(self, session: str) -> None:
        place = self._places.pop(session, None)
        if place is not None:
            self._replicas[place].release(session)
            self._loads[place] -= 1
            heapq.heappush(self._least, (self._loads[place], place))
            if len(self._least) > 8 * len(self._loads):  # mostly loads that have changed since
                self._least = sorted((load, i) for i, load in enumerate(self._loads))

    async def update_weights(self, path: str, version: int, in_flight: bool = True) -> None:
        updates = [replica.update(version, in_flight) for replica in self._replicas]
        for loaded in updates:
            if loaded is not None:
                await loaded

    async def drain_intervals(self) -> list[Interval]:
        return [interval for replica in self._replicas for interval in replica.drain()]

    def state(self) -> list[dict[str, float]]:
        """For a checkpoint, while nothing runs; raises ValueError where something does."""
        return [replica.state() for replica in self._replicas]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        for replica, kept in zip(self._replicas, state, strict=True):
            replica.restore(kept)

    async def close(self) -> None:
        """Nothing is held."""
