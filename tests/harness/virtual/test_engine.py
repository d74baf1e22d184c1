"""The engine on paper, against times that follow from the costs by hand."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.engines.simulated import SimulatedEngine
from harness.protocols import Completion, Generation, VersionSpan
from harness.virtual import VirtualClock


class World:
    """An engine and what its requests came to: name -> (end in seconds, completion)."""

    def __init__(self, costs: Any, replicas: int = 1, slots: int = 100) -> None:
        self.clock = VirtualClock()
        self.engine = SimulatedEngine(costs, self.clock, replicas=replicas, slots=slots)
        self.done: dict[str, tuple[float, Completion]] = {}

    async def ask(self, name: str, at_s: float, prompt: int, tokens: int) -> None:
        await self.clock.sleep(at_s - self.clock.now())
        session = name.split(":")[0]
        request = Generation(session, range(prompt), tokens, 1.0, 0, ())
        found = await self.engine.generate(request)
        self.done[name] = (self.clock.now(), found)

    def run(self, *requests: tuple[str, float, int, int], also: Any = None) -> dict[str, float]:
        async def main() -> None:
            asked = [self.clock.spawn(self.ask(*r), r[0]) for r in requests]
            if also is not None:
                await also()
            for one in asked:
                await one

        self.clock.run(main())
        return {name: end_s for name, (end_s, _) in self.done.items()}


def test_alone_a_request_takes_its_steps(toy: Any) -> None:
    world = World(toy(step=2.0))
    assert world.run(("a", 1.0, 10, 5)) == {"a": 11.0}
    assert len(world.done["a"][1].tokens_T) == 5
    assert world.done["a"][1].version_spans == [VersionSpan(0, 0, 5)]


def test_requests_share_steps_that_depend_on_how_many_run(toy: Any) -> None:
    """A step takes one second per running request. a: 4 tokens alone until 2 (2 tokens), then with
    b at 2 s a token until a's 4 are there at 6 (b has 2), then b alone: 3 more, at 9."""
    assert World(toy(step=0.0, each=1.0)).run(("a", 0, 1, 4), ("b", 2, 1, 5)) == {"a": 6, "b": 9}


def test_a_step_depends_on_the_context_that_grows_meanwhile(toy: Any) -> None:
    """Contexts of 10, 11, 12 and 13 tokens in four steps: at the middle of each, 10.5 to 13.5."""
    assert World(toy(step=0.0, context=1.0)).run(("a", 0, 10, 4)) == {"a": 48.0}


def test_reading_stops_the_decoding_and_a_session_reads_what_is_new(toy: Any) -> None:
    """a reads 10 s and decodes from 10 on; b reads from 12 to 32: a goes on at 32."""
    world = World(toy(read=1.0))
    ends = world.run(("a", 0, 10, 5), ("b", 12, 20, 1), ("a:2", 100, 18, 2))
    assert ends == {"a": 35.0, "b": 33.0, "a:2": 105.0}  # 15 tokens of 18 are there


def test_more_than_the_slots_wait_in_order(toy: Any) -> None:
    world = World(toy(), slots=1)
    assert world.run(("a", 0, 1, 5), ("b", 1, 1, 1), ("c", 1, 1, 1)) == {"a": 5, "b": 6, "c": 7}


def test_the_longest_idle_session_gives_way_where_keys_and_values_have_no_room(toy: Any) -> None:
    """Room for 30 tokens: b takes 15, a's 12 stay; c's 14 do not fit beside both. What was evicted
    is read again."""
    world = World(toy(read=1.0, context_capacity_tokens=30))
    ends = world.run(("a", 0, 10, 2), ("b", 20, 13, 2), ("c", 40, 12, 2), ("b:2", 60, 16, 1),
                     ("a:2", 80, 13, 1))  # fmt: skip
    assert ends["b:2"] == 62.0  # one new token
    assert ends["a:2"] == 94.0  # all thirteen


def test_sessions_stay_where_they_began_on_the_least_loaded(toy: Any) -> None:
    world = World(toy(step=0.0, each=1.0), replicas=2)
    ends = world.run(("a", 0, 1, 3), ("b", 0, 1, 3), ("a:2", 10, 4, 3))
    assert ends == {"a": 3.0, "b": 3.0, "a:2": 13.0}


def test_new_weights_between_two_tokens_split_the_spans_and_read_the_context_anew(toy: Any) -> None:
    world = World(toy(read=0.5))

    async def update() -> None:
        await world.clock.sleep(8.5)  # read until 5, three tokens at 8, half of the fourth
        await world.engine.update_weights("weights", 7, in_flight=True)
        assert world.clock.now() == 8.5

    ends = world.run(("a", 0, 10, 6), ("a:2", 100, 17, 1), also=update)
    assert world.done["a"][1].version_spans == [VersionSpan(0, 0, 3), VersionSpan(7, 3, 6)]
    assert ends["a"] == 8.5 + 13 * 0.5 + 2.5
    assert ends["a:2"] == 101.5  # what was read anew is of the new weights


def test_new_weights_between_turns_wait_for_what_runs(toy: Any) -> None:
    world = World(toy())
    loaded: list[float] = []

    async def update() -> None:
        await world.clock.sleep(2)
        await world.engine.update_weights("weights", 1, in_flight=False)
        loaded.append(world.clock.now())

    ends = world.run(("a", 0, 1, 5), ("b", 3, 1, 2), also=update)
    assert loaded == [5.0]
    assert ends == {"a": 5.0, "b": 7.0}
    assert [world.done[n][1].version_spans[0].version for n in "ab"] == [0, 1]


def test_a_released_request_is_answered_with_what_it_has(toy: Any) -> None:
    world = World(toy(step=0.0, each=1.0))

    async def release() -> None:
        await world.clock.sleep(6)
        await world.engine.release("a")

    ends = world.run(("a", 0, 1, 100), ("b", 0, 1, 5), also=release)
    assert len(world.done["a"][1].tokens_T) == 3
    assert world.done["a"][1].finish == "length"
    assert ends == {"a": 6.0, "b": 8.0}

    async def drained() -> list[Any]:
        return await world.engine.drain_intervals()

    (interval,) = world.clock.run(drained())
    assert (interval.start_s, interval.end_s) == (0.0, 8.0)
    assert interval.args == {"generated_tokens": 8, "prompt_tokens": 2}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(1, 40)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
)
def test_work_is_conserved(toy: Any, requests: list[tuple[int, int, int]], slots: int) -> None:
    """Without a cost of reading and with steps that take one second whoever runs, nobody is done
    before its own tokens, nobody after all tokens one by one; all tokens are made."""
    world = World(toy(), slots=slots)
    ends = world.run(*((str(n), float(at), p, k) for n, (at, p, k) in enumerate(requests)))
    total = sum(k for _, _, k in requests)
    for n, (at, _, tokens) in enumerate(requests):
        assert ends[str(n)] >= at + tokens - 1e-6
        assert ends[str(n)] <= 50 + total + 1e-6
        assert len(world.done[str(n)][1].tokens_T) == tokens
