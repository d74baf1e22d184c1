"""New weights generate, nothing of older ones is reused, and every token knows its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.cluster.local import WorkerError
from harness.protocols import Completion, Generation

Moved = Callable[[Path, Path, int], Path]
Score = Callable[..., torch.Tensor]
PROMPT = list(range(20, 180))
CLOSE = {"tiny": 1e-4, "halves": 1e-4, "smollm2": 3e-4}  # of one token's log-probability: rounding
FAR = 0.05  # other weights


def ask(session: str, new: int = 24, seed: int = 4) -> Generation:
    return Generation(session, PROMPT, new, 1.0, seed, ())


def gap(answer: Completion, expected: torch.Tensor, start: int = 0, end: int | None = None) -> Any:
    found = torch.tensor(answer.logprobs_T)
    return float((found - expected)[start:end].abs().max())


@pytest.mark.parametrize("policy", ["tiny", "halves", "smollm2"])
@pytest.mark.parametrize("in_flight", [True, False])
def test_the_same_prompt_is_answered_by_the_new_weights(
    policy: str,
    in_flight: bool,
    score: Score,
    moved: Moved,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Its keys and values were cached: a cache that survived would give neither file's figures."""
    engine = request.getfixturevalue(policy)
    new = moved(engine.folder, tmp_path / "weights-000001.safetensors", 1)
    old = engine.folder / "model.safetensors"
    engine.run(engine.client.update_weights(str(old), 10, in_flight))
    (before,) = engine.generate(ask(f"{policy}-before-{in_flight}"))
    engine.run(engine.client.drain_intervals())
    engine.run(engine.client.update_weights(str(new), 11, in_flight))
    (after,) = engine.generate(ask(f"{policy}-after-{in_flight}"))
    (busy,) = engine.run(engine.client.drain_intervals())
    assert busy.args == {"generated_tokens": 24, "prompt_tokens": len(PROMPT)}  # read anew, whole
    assert [[s.version for s in a.version_spans] for a in (before, after)] == [[10], [11]]
    for answer, right, wrong in ((before, old, new), (after, new, old)):
        tokens = PROMPT + answer.tokens_T
        near = gap(answer, score(engine.folder, tokens, len(PROMPT), weights=right))
        assert near < CLOSE[policy]
        assert gap(answer, score(engine.folder, tokens, len(PROMPT), weights=wrong)) > FAR


@pytest.mark.parametrize("policy", ["tiny", "halves"])
def test_in_flight_each_token_is_of_the_weights_it_names(
    policy: str, score: Score, moved: Moved, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tiny = request.getfixturevalue(policy)
    files = {20: tiny.folder / "model.safetensors"}
    files[21] = moved(tiny.folder, tmp_path / "weights-000021.safetensors", 2)
    files[22] = moved(tiny.folder, tmp_path / "weights-000022.safetensors", 3)

    async def scenario() -> list[Completion]:
        client = tiny.client
        await client.update_weights(str(files[20]), 20)
        running = [asyncio.create_task(client.generate(ask(f"f{i}", 400, i))) for i in range(3)]
        for version in (21, 22):
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in running)
            await client.update_weights(str(files[version]), version, in_flight=True)
        return await asyncio.gather(*running)

    for answer in tiny.run(scenario()):
        spans = answer.version_spans
        assert [s.version for s in spans] == [20, 21, 22]
        assert [s.start for s in spans[1:]] == [s.end for s in spans[:-1]]
        assert (spans[0].start, spans[-1].end) == (0, 400)
        for version, file in files.items():
            # Whole contexts: what came before the swap was read again by the new weights.
            expected = score(tiny.folder, PROMPT + answer.tokens_T, len(PROMPT), weights=file)
            for span in spans:
                found = gap(answer, expected, span.start, span.end)
                assert found < CLOSE["tiny"] if span.version == version else found > FAR


def test_between_turns_requests_end_with_the_old_and_later_ones_wait(
    tiny: Any, moved: Moved, tmp_path: Path
) -> None:
    new = moved(tiny.folder, tmp_path / "w.safetensors", 4)

    async def scenario() -> tuple[Completion, Completion]:
        client = tiny.client
        await client.update_weights(str(tiny.folder / "model.safetensors"), 30)
        running = asyncio.create_task(client.generate(ask("g0", 200)))
        await asyncio.sleep(0.5)
        update = asyncio.create_task(client.update_weights(str(new), 31, in_flight=False))
        await asyncio.sleep(0.2)
        later = asyncio.create_task(client.generate(ask("g1")))
        first = await running
        assert not later.done()
        await update
        return first, await later

    first, later = tiny.run(scenario())
    assert [(s.version, s.end) for s in first.version_spans] == [(30, 200)]
    assert [s.version for s in later.version_spans] == [31]


def test_a_session_that_is_let_go_is_answered_at_once(tiny: Any) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        running = [asyncio.create_task(tiny.client.generate(ask(f"h{i}", 450))) for i in range(2)]
        await asyncio.sleep(0.7)
        await tiny.client.release("h0")
        gone = await running[0]
        assert not running[1].done()
        return gone, await running[1]

    gone, whole = tiny.run(scenario())
    assert 0 < len(gone.tokens_T) < 450
    assert gone.tokens_T == whole.tokens_T[: len(gone.tokens_T)]
    assert gone.version_spans[-1].end == len(gone.logprobs_T) == len(gone.tokens_T)
    assert gone.finish == "length"
    assert tiny.generate(ask("h0", 5))[0].finish == "length"  # a new session of that name


def test_the_engine_says_how_many_tokens_it_made(tiny: Any) -> None:
    tiny.run(tiny.client.drain_intervals())
    tiny.generate(*(ask(f"i{i}", 30, i) for i in range(4)))
    intervals = tiny.run(tiny.client.drain_intervals())
    assert sum(i.args["generated_tokens"] for i in intervals) == 120
    assert all(i.resource == "engine/0" and i.end_s > i.start_s for i in intervals)
    assert tiny.run(tiny.client.drain_intervals()) == []


def test_a_file_without_a_weight_is_refused_by_name(tmp_path: Path, tiny: Any) -> None:
    """Last: half of the weights may be new then, so that the engine stays paused."""
    weights = load_file(tiny.folder / "model.safetensors")
    del weights["model.layers.2.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "part.safetensors")
    with pytest.raises(WorkerError, match=r"without model\.layers\.2\.mlp\.down_proj\.weight"):
        tiny.run(tiny.client.update_weights(str(tmp_path / "part.safetensors"), 40))
