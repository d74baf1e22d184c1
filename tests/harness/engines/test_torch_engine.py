"""Continuous batching: what comes out may depend on nothing but the request and the weights."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from harness.engines.sampling import uniforms
from harness.engines.torch_engine import TorchEngine
from harness.protocols import Completion, Generation, VersionSpan

Complete = Callable[..., list[Completion]]


def ask(session: str, prompt: list[int], new: int, **options: Any) -> Generation:
    defaults: dict[str, Any] = {"temperature": 1.0, "seed": 0, "stop_tokens": ()}
    return Generation(session, prompt, new, **(defaults | options))


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(61) for _ in range(draw.randint(2, 40))] for _ in range(count)]


def engine(policy: Path, slots: int = 8, **options: Any) -> TorchEngine:
    return TorchEngine(str(policy), slots=slots, max_context=96, **options)


@torch.inference_mode()
def logprobs_of(model: Any, prompt: list[int], tokens: list[int], temperature: float = 1.0):
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(tokens)[:, None])[
        :, 0
    ]


def test_greedy_equals_transformers_generate(
    policy: Path, reference: Any, complete: Complete
) -> None:
    asked = prompts(6)
    done = complete(
        engine(policy), *(ask(str(i), p, 20, temperature=0.0) for i, p in enumerate(asked))
    )
    for prompt, completion in zip(asked, done, strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert completion.tokens_T == expected[0, len(prompt) :].tolist()
        assert completion.finish == "length"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_sampling_distribution(
    policy: Path, reference: Any, complete: Complete, temperature: float
) -> None:
    asked = prompts(5, seed=2)
    done = complete(
        engine(policy), *(ask(str(i), p, 12, temperature=temperature) for i, p in enumerate(asked))
    )
    for prompt, completion in zip(asked, done, strict=True):
        expected = logprobs_of(reference, prompt, completion.tokens_T, temperature)
        torch.testing.assert_close(
            torch.tensor(completion.logprobs_T), expected, rtol=1e-4, atol=1e-4
        )


def test_sampled_frequencies_follow_the_distribution(
    policy: Path, reference: Any, complete: Complete
) -> None:
    prompt, samples = [3, 1, 4], 4000
    served = engine(policy, slots=64)
    counts = torch.zeros(61)
    for start in range(0, samples, 64):
        names = range(start, min(start + 64, samples))
        for completion in complete(served, *(ask(str(i), prompt, 1, seed=i) for i in names)):
            counts[completion.tokens_T[0]] += 1
        for i in names:
            served.release(str(i))
    with torch.inference_mode():
        p = reference(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    order = p.argsort(descending=True)
    expected, observed = p[order] * samples, counts[order]
    common = expected >= 5
    expected = [*expected[common].tolist(), float(expected[~common].sum())]
    observed = [*observed[common].tolist(), float(observed[~common].sum())]
    scale = sum(observed) / sum(expected)
    # The seeds are fixed: this is no flaky bound.
    assert scipy.stats.chisquare(observed, [e * scale for e in expected]).pvalue > 0.01


def test_uniforms_are_uniform_and_independent_of_their_neighbours() -> None:
    seeds, positions = np.meshgrid(
        np.arange(100, dtype=np.uint64), np.arange(100, dtype=np.uint64), indexing="ij"
    )
    u = uniforms(seeds.ravel(), positions.ravel())
    assert scipy.stats.kstest(u, "uniform").pvalue > 0.01
    grid = u.reshape(100, 100)
    for lagged in (grid[1:, :] - 0.5, grid[:, 1:] - 0.5):
        other = grid[:-1, :] if lagged.shape[0] == 99 else grid[:, :-1]
        assert abs(float((lagged * (other - 0.5)).mean())) * 12 < 4 / 99
    assert uniforms(seeds[3, 7:8], positions[3, 7:8])[0] == grid[3, 7]


@pytest.mark.parametrize("slots", [3, 16])
@pytest.mark.parametrize("prompt_tokens", [7, 512])
def test_joining_and_leaving_at_random_equals_running_alone(
    policy: Path, complete: Complete, slots: int, prompt_tokens: int
) -> None:
    draw = random.Random(7)
    asked = [
        ask(str(i), p, draw.randint(1, 25), temperature=draw.choice([0.0, 1.0]), seed=i,
            stop_tokens=(draw.randrange(61),))
        for i, p in enumerate(prompts(24, seed=5))
    ]  # fmt: skip
    alone = [complete(engine(policy), request)[0] for request in asked]
    served = engine(policy, slots=slots, prompt_tokens=prompt_tokens)
    done: dict[str, Completion] = {}
    queue = list(asked)
    while queue or served.has_work():
        while queue and draw.random() < 0.4:
            request = queue.pop(0)
            served.generate(lambda c, name=request.session: done.update({name: c}), request)
        if served.has_work():
            served.work()
        for name in [n for n in done if draw.random() < 0.2]:
            served.release(name)
    for request, single in zip(asked, alone, strict=True):
        together = done[request.session]
        assert together.tokens_T == single.tokens_T
        assert together.finish == single.finish
        assert together.logprobs_T == pytest.approx(single.logprobs_T, abs=1e-4)


@pytest.mark.parametrize("slots", [8, 2])
def test_a_session_reuses_its_keys_and_equals_full_recomputation(
    policy: Path, complete: Complete, slots: int
) -> None:
    draw = random.Random(11)
    kept, fresh = engine(policy, slots=slots), engine(policy)
    read = {"kept": 0, "fresh": 0}
    context = dict(zip("abc", prompts(3, seed=9), strict=True))
    for turn in range(4):
        order = sorted(context, key=lambda _: draw.random())
        for name in order:
            seen = ask(name, context[name], 4, temperature=0.0)
            (reused,) = complete(kept, seen)
            (whole,) = complete(fresh, seen)
            fresh.release(name)
            assert reused.tokens_T == whole.tokens_T
            assert reused.logprobs_T == pytest.approx(whole.logprobs_T, abs=1e-4)
            context[name] = context[name] + reused.tokens_T + [turn, 1, 2]
        for key, served in (("kept", kept), ("fresh", fresh)):
            read[key] += sum(i.args["prompt_tokens"] for i in served.drain_intervals())
    if slots == 8:
        assert read["kept"] < read["fresh"] / 2
    else:  # three sessions in two slots: idle ones were evicted, and read again
        assert read["fresh"] / 2 < read["kept"] < read["fresh"]


def test_a_changed_context_is_read_again_from_where_it_differs(
    policy: Path, complete: Complete
) -> None:
    served = engine(policy)
    (first,) = complete(served, ask("s", [1, 2, 3, 4, 5, 6], 5, temperature=0.0))
    for edited in ([1, 2, 9, 4, 5, 6], [1, 2, 3], [1, 2, 3, 4, 5, 6, *first.tokens_T], [7]):
        (again,) = complete(served, ask("s", edited, 5, temperature=0.0))
        (alone,) = complete(engine(policy), ask("s", edited, 5, temperature=0.0))
        assert again.tokens_T == alone.tokens_T


def test_seeds_and_positions_decide_what_is_sampled(policy: Path, complete: Complete) -> None:
    prompt = [1, 2, 3]
    first = complete(engine(policy), *(ask(str(i), prompt, 10, seed=i) for i in range(6)))
    again = complete(engine(policy), *(ask(str(i), prompt, 10, seed=i) for i in range(6)))
    assert [c.tokens_T for c in first] == [c.tokens_T for c in again]
    assert len({tuple(c.tokens_T) for c in first}) == 6
    # A turn's position counts the session's tokens: the same prompt does not repeat its answer.
    served = engine(policy)
    turns = [complete(served, ask("s", prompt, 10, seed=4))[0].tokens_T for _ in range(2)]
    assert turns[0] == first[4].tokens_T
    assert turns[1] != turns[0]


def test_a_stop_token_ends_the_answer_and_is_part_of_it(policy: Path, complete: Complete) -> None:
    (whole,) = complete(engine(policy), ask("s", [1, 2], 20, seed=5))
    stop = whole.tokens_T[6]
    end = whole.tokens_T.index(stop) + 1
    (cut,) = complete(engine(policy), ask("s", [1, 2], 20, seed=5, stop_tokens=(stop,)))
    assert cut.tokens_T == whole.tokens_T[:end]
    assert cut.finish == "stop"


def test_new_weights_take_over_between_two_tokens(
    policy: Path, other_policy: Path, complete: Complete
) -> None:
    prompt = [4, 8, 15, 16, 23, 42]
    served = engine(policy)
    done: list[Completion] = []
    answered: list[None] = []
    complete(served, ask("idle", prompt, 3, temperature=0.0))
    served.generate(done.append, ask("s", prompt, 12, temperature=0.0))
    for _ in range(5):
        served.work()
    served.update_weights(answered.append, str(other_policy / "model.safetensors"), 7)
    while served.has_work():
        served.work()
    (completion,) = done
    assert answered == [None]
    assert completion.version_spans == [VersionSpan(0, 0, 5), VersionSpan(7, 5, 12)]
    (before,) = complete(engine(policy), ask("s", prompt, 12, temperature=0.0))
    assert completion.tokens_T[:5] == before.tokens_T[:5]
    # The rest is what the new weights alone say after that context: no old key is left in it.
    fresh = engine(other_policy)
    (rest,) = complete(fresh, ask("s", prompt + completion.tokens_T[:5], 7, temperature=0.0))
    assert completion.tokens_T[5:] == rest.tokens_T != before.tokens_T[5:]
    assert completion.logprobs_T[5:] == pytest.approx(rest.logprobs_T, abs=1e-4)
    (idle,) = complete(served, ask("idle", prompt, 7, temperature=0.0))
    (expected,) = complete(fresh, ask("idle", prompt, 7, temperature=0.0))
    assert idle.tokens_T == expected.tokens_T
    assert idle.version_spans == [VersionSpan(7, 0, 7)]


def test_new_weights_between_turns_wait_for_what_decodes_and_new_requests_wait_for_them(
    policy: Path, other_policy: Path, complete: Complete
) -> None:
    prompt = [4, 8, 15, 16, 23, 42]
    served = engine(policy)
    done: dict[str, Completion] = {}
    loaded_after: list[int] = []
    complete(served, ask("idle", prompt, 3, temperature=0.0))
    served.generate(lambda c: done.update(running=c), ask("running", prompt, 12, temperature=0.0))
    served.work()
    new = str(other_policy / "model.safetensors")
    served.update_weights(lambda _: loaded_after.append(len(done)), new, 7, in_flight=False)
    with pytest.raises(ValueError, match="version 7 is still to come"):
        served.update_weights(lambda _: None, new, 8)
    turn = [*prompt, 5, 6]
    served.generate(lambda c: done.update(idle=c), ask("idle", turn, 4, temperature=0.0))
    served.generate(lambda c: done.update(late=c), ask("late", prompt, 12, temperature=0.0))
    while served.has_work():
        served.work()
    assert loaded_after == [1]  # the running one had ended, the others had not begun
    (before,) = complete(engine(policy), ask("s", prompt, 12, temperature=0.0))
    assert (done["running"].tokens_T, done["running"].version_spans) == (
        before.tokens_T, [VersionSpan(0, 0, 12)]
    )  # fmt: skip
    fresh = engine(other_policy)
    for name, text, length in (("idle", turn, 4), ("late", prompt, 12)):
        (expected,) = complete(fresh, ask(name, text, length, temperature=0.0))
        assert done[name].tokens_T == expected.tokens_T
        assert done[name].version_spans == [VersionSpan(7, 0, length)]


def test_new_weights_between_turns_come_when_the_last_running_session_is_released(
    policy: Path, other_policy: Path
) -> None:
    served = engine(policy)
    answered: list[None] = []
    served.generate(lambda _: None, ask("s", [1, 2, 3], 12))
    served.work()
    new = str(other_policy / "model.safetensors")
    served.update_weights(answered.append, new, 1, in_flight=False)
    served.release("s")
    assert served.has_work() and not answered
    served.work()
    assert answered == [None] and not served.has_work()


def test_weights_that_cannot_be_read_change_nothing(
    policy: Path, other_policy: Path, tmp_path: Path, complete: Complete
) -> None:
    served = engine(policy)
    (before,) = complete(served, ask("a", [1, 2], 8, temperature=0.0))
    broken = tmp_path / "weights.safetensors"
    broken.write_bytes((other_policy / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(Exception, match=r"(?i)incomplete"):
        served.update_weights(lambda _: None, str(broken), 1)
    (after,) = complete(served, ask("b", [1, 2], 8, temperature=0.0))
    assert after.tokens_T == before.tokens_T
    assert after.version_spans == [VersionSpan(0, 0, 8)]


def test_requests_wait_in_order_for_slots_and_idle_sessions_make_room(policy: Path) -> None:
    served = engine(policy, slots=2)
    order: list[str] = []
    for name in "abcde":
        served.generate(lambda _, n=name: order.append(n), ask(name, [1, 2, 3], 4))
    while served.has_work():
        served.work()
    assert order == list("abcde")


def test_release_frees_the_slot_and_answers_a_cancelled_request(
    policy: Path, complete: Complete
) -> None:
    served = engine(policy, slots=1)
    answers: dict[str, Completion] = {}
    for name in "ab":
        served.generate(lambda c, n=name: answers.update({n: c}), ask(name, [1, 2, 3], 50))
    served.work()
    served.release("b")
    assert answers.pop("b").tokens_T == []
    served.release("a")
    assert len(answers.pop("a").tokens_T) == 1
    assert not served.has_work()
    served.release("never seen")
    assert len(complete(served, ask("c", [1, 2, 3], 5))[0].tokens_T) == 5


def test_refuses_what_could_never_be_served(policy: Path) -> None:
    served = engine(policy)
    answer: list[Completion] = []
    served.generate(answer.append, ask("busy", [1], 5))
    cases = {
        "max_context=96": ask("s", [1] * 90, 7),
        "empty prompt": ask("s", [], 5),
        "outside the vocabulary": ask("s", [61], 5),
        "already under way": ask("busy", [1], 5),
    }
    for message, request in cases.items():
        with pytest.raises(ValueError, match=message):
            served.generate(answer.append, request)
    served.generate(answer.append, ask("s", [1] * 90, 6))
    while served.has_work():
        served.work()
    assert sorted(len(c.tokens_T) for c in answer) == [5, 6]


def test_busy_intervals_are_merged_disjoint_and_counted(policy: Path, complete: Complete) -> None:
    served = engine(policy)
    complete(served, *(ask(str(i), [1, 2, 3], 6) for i in range(4)))
    drained = served.drain_intervals()
    assert sum(i.args["generated_tokens"] for i in drained) == 24
    assert sum(i.args["prompt_tokens"] for i in drained) == 12
    assert len(drained) < 6  # fewer than there were steps
    edges = [edge for i in drained for edge in (i.start_s, i.end_s)]
    assert edges == sorted(edges)
    assert {(i.resource, i.name) for i in drained} == {("engine/0", "generate")}
    assert served.drain_intervals() == []
