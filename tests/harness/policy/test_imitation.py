"""The warm start: what is imitated is exactly what a rollout would hold."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from harness.policy.imitation import (
    Demonstration,
    ImitationSettings,
    ModelShape,
    batches,
    imitate,
    imitation_loss,
    new_model,
    read_demonstrations,
    tokenise,
)
from harness.policy.tokenizer import ChatTokens, train_tokenizer
from harness.policy.warm_start import main, parse
from harness.protocols import UsageError

SHAPE = ModelShape(
    vocab_size=300, hidden_size=32, layers=2, heads=2, head_dim=16, feed_forward=48, context=128
)
DEMONSTRATION = Demonstration(
    "area is wrong.", [("ls", "a.py"), ("sed -i '2s|+|*|' a.py", "ok"), ("submit", "")]
)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatTokens:
    folder = tmp_path_factory.mktemp("tokens")
    train_tokenizer(["area is wrong", "sed -i a.py"], folder, vocab_size=300, context=128)
    return ChatTokens(folder)


def test_a_demonstration_becomes_the_tokens_of_a_rollout(chat: ChatTokens, tmp_path: Path) -> None:
    line = {"first_message": DEMONSTRATION.first_message, "turns": DEMONSTRATION.turns, "reward": 1}
    file = tmp_path / "demos.jsonl"
    file.write_text(json.dumps(line) + "\n")
    assert read_demonstrations(file) == [DEMONSTRATION]
    tokens, mask = tokenise(DEMONSTRATION, chat)
    rollout = chat.first("area is wrong.") + chat.action("ls") + chat.observation("a.py")
    assert tokens[: len(rollout)] == rollout
    runs = itertools.groupby(zip(tokens, mask, strict=True), key=lambda pair: pair[1])
    acted = [chat.decode_action([t for t, _ in run]) for acts, run in runs if acts]
    assert acted == [command for command, _ in DEMONSTRATION.turns]
    assert tokens[-1] in chat.stop_tokens  # nothing is heard after submit


def test_the_loss_weights_context_and_ignores_padding() -> None:
    model = new_model(SHAPE, seed=0)
    short, long = ([5, 6, 7, 8], [0, 0, 1, 1]), ([1, 2, 3, 4, 5, 6, 7], [0, 1, 1, 0, 0, 1, 0])

    def by_hand(context_weight: float) -> float:
        total = 0.0
        for tokens, mask in (short, long):
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
            for t in range(1, len(tokens)):
                weight = 1.0 if mask[t] else context_weight
                total -= weight * float(logprobs[t - 1, tokens[t]].detach())
        return total / 5

    for context_weight in (0.2, 0.0):
        loss, action_loss = imitation_loss(model, [short, long], context_weight)
        assert float(loss.detach()) == pytest.approx(by_hand(context_weight), rel=1e-5)
        assert action_loss == pytest.approx(by_hand(0.0), rel=1e-5)


def test_batches_are_of_similar_length_and_reproducible() -> None:
    data = [(list(range(1, n + 1)), [1] * n) for n in range(2, 100)]
    drawn = list(itertools.islice(batches(data, 4, seed=3), 16))
    assert drawn == list(itertools.islice(batches(data, 4, seed=3), 16))
    spreads = [max(map(len_of, b)) - min(map(len_of, b)) for b in drawn]
    assert all(len(b) == 4 for b in drawn)
    assert sum(spreads) / len(spreads) < 25  # drawn without bucketing it would be about 60


def len_of(sequence: tuple[list[int], list[int]]) -> int:
    return len(sequence[0])


def test_imitation_learns_and_is_reproducible(chat: ChatTokens) -> None:
    data = [tokenise(DEMONSTRATION, chat)]
    settings = ImitationSettings(steps=30, batch_size=2, warm_up=5, learning_rate=1e-2)
    curves = [
        [loss for _, loss in imitate(new_model(SHAPE, seed=0), data, settings)] for _ in range(2)
    ]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 30
    assert curves[0][-1] < 0.5 * curves[0][0]


def test_arguments_name_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demos = tmp_path / "demos.jsonl"
    demos.write_text("")
    settings = parse([f"demos={demos}", f"out={tmp_path}", "steps=7", "target=0.5"])
    assert (settings.steps, settings.target) == (7, 0.5)
    for argument, message in (
        ("stepz=3", "stepz=3: unknown argument"),
        ("steps=many", "steps=many: not a int"),
        ("demos=/nowhere", "give an existing file"),
    ):
        with pytest.raises(UsageError, match=message):
            parse([f"demos={demos}", f"out={tmp_path}", argument])
    assert main(["out=x"]) == 2
    assert "give an existing file" in capsys.readouterr().err
