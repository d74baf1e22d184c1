"""Float64 that stays float64, for both families of models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.policy.load import load_for_training
from thundersync.check import Case, Check
from thundersync.true_norms import TrueNorm, use_true_norms


@pytest.mark.parametrize(("family", "norms"), [("llama", 2 * 2 + 1), ("qwen3", 2 * 4 + 1)])
def test_every_norm_is_replaced_and_shares_its_weight(
    family: str, norms: int, request: pytest.FixtureRequest
) -> None:
    model = load_for_training(request.getfixturevalue(family), torch.float64)
    names = {n: id(p) for n, p in model.named_parameters()}
    stock = model.model.norm
    use_true_norms(model)
    assert {n: id(p) for n, p in model.named_parameters()} == names
    assert sum(isinstance(m, TrueNorm) for m in model.modules()) == norms
    assert not any(type(m).__name__.endswith("RMSNorm") for m in model.modules())
    hidden = torch.randn(5, 64, dtype=torch.float64)
    scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + stock.variance_epsilon)
    true = model.model.norm(hidden)
    torch.testing.assert_close(true, stock.weight * hidden * scale, rtol=1e-14, atol=1e-15)
    assert 1e-9 < (stock(hidden) - true).abs().max() < 1e-6  # the stock one rounds to float32


def test_a_model_without_such_norms_is_an_error() -> None:
    with pytest.raises(ValueError, match="no RMSNorm to replace; take a Llama or Qwen3"):
        use_true_norms(torch.nn.Sequential(torch.nn.LayerNorm(4)))


@pytest.mark.parametrize("release", ["group", "reward", "submit"])
def test_a_llama_with_shared_keys_agrees_to_rounding(
    llama: Path, tmp_path: Path, release: str
) -> None:
    row = Check(llama, "float64", tmp_path).row(Case(release=release))
    assert 0 < row["gradient_relative_error"] <= 1e-12
