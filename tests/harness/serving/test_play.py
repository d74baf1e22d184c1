"""A round: requests are handed over when they are due, and every answer must be whole."""

import pytest

from harness.policy.load import resolve
from harness.serving.continuous import Continuous
from harness.serving.generate import Generate
from harness.serving.ours import Ours
from harness.serving.play import Progress, play
from harness.serving.requests import Request, longest, make
from harness.serving.setting import Setting


class OneAtATime:
    """Makes a token a step for the oldest request, `short` tokens too few in all."""

    def __init__(self, short: int = 0) -> None:
        self.queue: list[Request] = []
        self.came: list[tuple[int, int]] = []  # request, tokens made before
        self.made = self.of_first = 0
        self.short = short

    def add(self, request: Request) -> None:
        self.queue.append(request)
        self.came.append((request.number, self.made))

    def step(self, progress: Progress) -> None:
        self.made += 1
        self.of_first += 1
        if self.of_first < self.queue[0].new_tokens - self.short:
            progress(1, [])
        else:
            whole = [(self.queue.pop(0).number, self.of_first)]
            self.of_first = 0
            progress(1, whole)

    def forget(self) -> None: ...

    def close(self) -> None: ...


def test_a_request_comes_after_its_tokens_or_when_nothing_else_is_left() -> None:
    server = OneAtATime()
    afters = [0, 0, 3, 5, 100]
    round_ = play(server, [Request(n, [5], 4, after, True) for n, after in enumerate(afters)])
    # 16 tokens are made when the last but one is done: the last is not waited for.
    assert server.came == [(0, 0), (1, 0), (2, 3), (3, 5), (4, 16)]
    assert round_.tokens == server.made == 20
    assert len(round_.wall_latencies_s) == len(round_.processor_latencies_s) == 5
    assert max(round_.wall_latencies_s) <= round_.wall_s


def test_an_answer_of_another_length_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="request 0: 3 tokens came, 4 were asked for"):
        play(OneAtATime(short=1), make("together", 2, 4, 1024, 0))


@pytest.mark.parametrize("engine", [Ours, Generate, Continuous])
def test_every_engine_answers_in_full_and_is_ready_for_another_round(engine: type) -> None:
    server = engine(Setting(str(resolve("tiny")), slots=3, context=longest(6)))
    try:
        for seed, scenario in enumerate(("together", "random", "random")):
            requests = make(scenario, 5, 6, 1024, seed)
            round_ = play(server, requests)
            assert round_.tokens == sum(r.new_tokens for r in requests)
            assert 0 < max(round_.processor_latencies_s) <= round_.processor_s
    finally:
        server.close()
