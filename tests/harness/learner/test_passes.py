"""How passes are made: side by side without padding, with layers that run again, in bfloat16."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from harness.composition import compose
from harness.config import ObjectiveConfig
from harness.learner.client import ScoredTokens
from harness.learner.passes import lay_side_by_side, recompute
from harness.learner.precision import weights_dtype
from harness.learner.scoring import Scorer
from harness.learner.scoring import pack as side_by_side
from harness.learner.torch_learner import TorchLearner
from harness.packing import pack
from harness.parts import learner_options
from harness.policy.load import resolve
from harness.protocols import UsageError
from harness.validation import validate
from thundersync.true_norms import use_true_norms

SIZE: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES = {
    "qwen3": SIZE | {"num_key_value_heads": 2, "head_dim": 8},
    "mistral": SIZE | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    "gpt_neox": SIZE,
}
COEFFICIENTS = [0.5, -1.0, 0.7, 0.3, -0.2]


def model_of(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **FAMILIES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    if dtype == torch.float64 and kind != "gpt_neox":  # whose norms stay in it
        use_true_norms(model)
    return model


def rows() -> list[ScoredTokens]:
    """Of awkward lengths; the third's context was rewritten, the fourth has one token to learn."""
    draw = random.Random(0)

    def row(number: int, length: int, rewritten: list[int] | None = None) -> ScoredTokens:
        mask = [0] + [int(draw.random() < 0.3) for _ in range(length - 2)] + [1]
        tokens = [draw.randrange(61) for _ in range(length)]
        return ScoredTokens(f"t{number}", 0, 1.0, tokens, mask, rewritten_at=rewritten or [])

    return [row(0, 40), row(1, 17), row(2, 60, [20, 21]), row(3, 2), row(4, 33)]


def gradient(
    model: Any,
    given: list[ScoredTokens],
    coefficients: list[float],
    dtype: str = "float64",
    packed: bool = False,
) -> torch.Tensor:
    scorer = Scorer(model, 0.8, ObjectiveConfig(), None, dtype, packed)
    if packed:
        lay_side_by_side(scorer)
    score = scorer(given, coefficients)
    assert score is not None
    model.zero_grad()
    score.policy.backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_trajectories_side_by_side_have_the_gradient_of_each_alone(kind: str, again: bool) -> None:
    model, given = model_of(kind), rows()
    alone = sum(gradient(model, [r], [c]) for r, c in zip(given, COEFFICIENTS, strict=True))
    padded = gradient(model, given, COEFFICIENTS)
    assert isinstance(alone, torch.Tensor) and relative(padded, alone) <= 1e-12
    recompute(model, again)
    assert relative(gradient(model, given, COEFFICIENTS, packed=True), alone) <= 1e-12


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_nothing_leaks_from_one_trajectory_into_anothers_gradient(kind: str) -> None:
    """With coefficient 0 for one of them, its tokens decide nothing: not one bit."""
    model, given = model_of(kind), rows()
    coefficients = [0.5, 0.0, 0.7, 0.3, -0.2]
    before = gradient(model, given, coefficients, packed=True)
    changed = list(given)
    changed[1] = replace(given[1], tokens_T=[(t + 7) % 61 for t in given[1].tokens_T])
    # Not the rounding of an embedding's sum either: its own rows are added as zeros.
    assert torch.equal(gradient(model, changed, coefficients, packed=True), before)
    coefficients[1] = 1.0
    assert relative(gradient(model, changed, coefficients, packed=True), before) > 1e-3


@pytest.mark.parametrize("tokens", [1, 7, 1000])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_logits_in_slices_have_the_gradient_of_all_at_once(tokens: int, packed: bool) -> None:
    """With every term that looks at the vocabulary: the policy's, the entropy's, a KL's."""
    model, given = model_of("qwen3"), rows()
    reference = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        reference.lm_head.weight.mul_(0.9)
    objective = ObjectiveConfig()
    objective.entropy.coefficient, objective.kl.coefficient = 0.3, 0.2

    def both(slices: int) -> list[torch.Tensor]:
        scorer = Scorer(model, 0.8, objective, reference, "float64", packed, slices)
        if packed:
            lay_side_by_side(scorer)
        score = scorer(given, COEFFICIENTS)
        assert score is not None and score.always is not None
        model.zero_grad()
        (score.policy + score.always).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        return [gradients, score.policy.detach(), score.always.detach()]

    for got, expected in zip(both(tokens), both(0), strict=True):
        assert relative(got, expected) <= 1e-12


def test_logits_in_slices_are_not_kept() -> None:
    """Nothing as wide as the vocabulary waits for the backward pass, but for the weights."""
    model, given = model_of("qwen3", torch.float32), rows()
    own = {p.data_ptr() for p in model.parameters()}

    def widest(slices: int) -> int:
        kept: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            Scorer(model, 0.8, ObjectiveConfig(), logits_tokens=slices)(given, COEFFICIENTS)
        wide = [t for t in kept if t.data_ptr() not in own and t.dim() == 2 and t.shape[1] == 61]
        return max((len(t) for t in wide), default=0)

    assert widest(0) == len(side_by_side(given, torch.device("cpu")).targets_N)
    assert widest(4) == 0


def test_distributions_that_a_distillation_needs_are_not_sliced() -> None:
    settings = ["objective=opd", "objective.top_k=8", "learner.logits_tokens=64"]
    with pytest.raises(UsageError, match=r"^learner\.logits_tokens=64: objective\.top_k=8"):
        validate(compose(settings))
    validate(compose([settings[0], settings[2]]))


def test_a_body_that_hands_nothing_on_is_refused() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.BloomForCausalLM(config)
    with pytest.raises(UsageError, match=r"^learner\.packing=packed: BloomForCausalLM cannot") as e:
        lay_side_by_side(Scorer(model, 1.0, ObjectiveConfig(), packed=True))
    assert str(e.value).endswith("take learner.packing=padded")


def test_chunks_without_padding_hold_every_trajectory_once_and_no_more_tokens() -> None:
    given = rows()
    chunks = pack(given, 60, packed=True)
    assert sorted(r.trajectory_id for c in chunks for r in c) == [r.trajectory_id for r in given]
    assert all(sum(len(r.tokens_T) for r in c) <= 60 for c in chunks)
    assert len(chunks) == 3 < len(pack(given, 60))
    assert [len(c) for c in pack(given, 1, packed=True)] == [1] * 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_that_run_again_give_the_same_bits(dtype: str) -> None:
    kept = gradient(model_of("qwen3", torch.float32), rows(), COEFFICIENTS, dtype)
    again = model_of("qwen3", torch.float32)
    recompute(again, True)
    assert torch.equal(gradient(again, rows(), COEFFICIENTS, dtype), kept)


def test_inputs_that_wait_in_host_memory_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here both memories are the host's; on a GPU this was not verified."""
    import transformers.modeling_utils

    moved: list[torch.Size] = []

    class Counted(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, **options: Any) -> None:
            def pack(tensor: torch.Tensor) -> torch.Tensor:
                moved.append(tensor.shape)
                return tensor.clone()

            super().__init__(pack, lambda tensor: tensor)

    monkeypatch.setattr(transformers.modeling_utils, "save_on_cpu", Counted)
    given, made = rows(), []
    for inputs in ("device", "host"):
        model = model_of("qwen3", torch.float32)
        recompute(model, True, inputs)
        assert moved == []
        made.append(gradient(model, given, COEFFICIENTS, "float32", packed=True))
    assert torch.equal(*made)
    tokens = sum(len(row.tokens_T) for row in given)
    assert len(moved) == 2 and all(tokens - 10 < shape[1] < tokens for shape in moved)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (["learner.device=cuda"], "only the inputs of layers that run again"),
        (["learner.gradient_checkpointing=true"], "the memory of learner.device=cpu is the host's"),
    ],
)
def test_host_memory_for_nothing_is_refused(settings: list[str], refused: str) -> None:
    with pytest.raises(UsageError, match=f"^learner.activations=host: {refused}"):
        validate(compose(["learner.activations=host", *settings]), gpu_count=lambda: 8)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
def test_rounded_weights_are_held_where_nothing_runs_again_and_only_there(again: bool) -> None:
    """Counted when the last layer is through."""
    model = model_of("qwen3", torch.float32)
    recompute(model, again)
    casts = _Casts({p.shape for p in model.model.layers.parameters() if p.dim() == 2})
    held: list[int] = []
    model.model.norm.register_forward_pre_hook(lambda *_: held.append(casts.alive()))
    with casts:
        Scorer(model, 0.8, ObjectiveConfig(), None, "bfloat16")(rows(), COEFFICIENTS)
    assert held == [0 if again else 2 * 7]


class _Casts(TorchDispatchMode):
    """Which rounded copies of weights of these shapes are alive."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self._shapes, self._made = shapes, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and made.shape in self._shapes:
            assert made.dtype == torch.bfloat16
            self._made.append(StorageWeakRef(made.untyped_storage()))
        return made

    def alive(self) -> int:
        return sum(not made.expired() for made in self._made)


def test_bfloat16_computes_in_it_and_sums_in_float32(tmp_path: Path) -> None:
    config = compose(["learner.dtype=bfloat16", "schedule=stream", "schedule.release=reward"])
    options = learner_options(config, resolve("tiny"), tmp_path)
    learner = TorchLearner(**options, threads=1)
    plain = TorchLearner(**options | {"dtype": "float32"}, threads=1)
    draw = random.Random(1)
    row = replace(rows()[0], tokens_T=[draw.randrange(1000) for _ in range(40)])
    for one in (learner, plain):
        one.capture([row])
        one.accumulate([replace(row, trajectory_id="t9")], [0.3])
        one._ledger.drop(0)
    rounded, exact = (torch.cat([d.flatten() for d in one.update_direction(1.0)])
                      for one in (learner, plain))  # fmt: skip
    assert 1e-4 < relative(rounded.double(), exact.double()) < 0.1  # passes are in bfloat16
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, rounded.bfloat16().float())  # and sums are not
    learner.step(1.0)
    state = learner.optimizer.state[learner.parameters[0]]
    assert {p.dtype for p in learner.parameters} == {torch.float32}
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    assert weights_dtype("bfloat16") == torch.float32


@pytest.mark.parametrize(
    "setting",
    [
        "learner.gradient_checkpointing=true",
        "learner.packing=packed",
        "learner.dtype=bfloat16",
        "learner.logits_tokens=64",
    ],
)
def test_turns_are_refused_with_what_their_passes_cannot_have(setting: str) -> None:
    with pytest.raises(UsageError, match=setting.replace(".", r"\.")) as caught:
        validate(compose(["schedule=stream", "schedule.release=turn", setting]))
    assert "schedule.release=submit" in str(caught.value)
    config = compose(["schedule=stream", "schedule.release=auto", setting])
    validate(config)
    assert learner_options(config, resolve("tiny"), Path())["turns"] is None
