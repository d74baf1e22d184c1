"""What every engine is asked for: the same, whatever its speed."""

import itertools
import statistics

from harness.serving.requests import PROMPT_TOKENS, longest, make


def test_a_round_is_the_same_for_all_and_shares_no_prompt_with_another() -> None:
    for scenario in ("together", "random"):
        first = make(scenario, 20, 16, 1024, seed=1)
        assert first == make(scenario, 20, 16, 1024, seed=1)
        starts = {tuple(r.prompt_T[:8]) for s in range(5) for r in make(scenario, 20, 16, 1024, s)}
        assert len(starts) == 100
        for request in first:
            assert PROMPT_TOKENS[0] <= len(request.prompt_T) <= PROMPT_TOKENS[1]
            assert len(request.prompt_T) + request.new_tokens <= longest(16)


def test_together_means_at_once_and_equally_long() -> None:
    assert {(r.after, r.new_tokens) for r in make("together", 20, 16, 1024, 0)} == {(0, 16)}


def test_at_random_one_comes_on_average_as_one_leaves() -> None:
    """Then the tokens made when a request comes are those that the ones before it have wanted, but
    for the half that was there at the start."""
    requests = make("random", 1500, 64, 1024, seed=0)
    assert [r.after for r in requests[:750]] == [0] * 750
    assert sorted(r.after for r in requests) == [r.after for r in requests]
    gaps = [b.after - a.after for a, b in itertools.pairwise(requests[750:])]
    lengths = [r.new_tokens for r in requests]
    assert abs(statistics.fmean(gaps) / statistics.fmean(lengths) - 1) < 0.1
    assert min(lengths) == 8 and max(lengths) == 120
