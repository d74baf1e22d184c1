"""Training adapters alone: the streamed update is the synchronous update, and only that large."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.parity import GAP_FACTOR, GRADIENT_FACTOR
from harness.policy.lora import Adapters
from thundersync.check import Case, Check, Shape

ADAPTERS = Adapters(rank=4, alpha=16.0, targets=("q_proj", "v_proj", "down_proj"), seed=0)
PARAMETERS = 2 * 4 * ((64 + 64) + (64 + 32) + (96 + 64))  # of two layers


@pytest.fixture(scope="module")
def checks(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Check]:
    return {
        dtype: Check(
            qwen3, dtype, tmp_path_factory.mktemp(dtype), Shape(3, 4, 24), 8, adapters=ADAPTERS
        )
        for dtype in ("float32", "float64")
    }


@pytest.mark.parametrize("release", [pytest.param("reward", marks=pytest.mark.slow), "submit"])
def test_float32_stays_within_the_control_in_gradients_and_over_updates(
    checks: dict[str, Check], release: str
) -> None:
    check, case = checks["float32"], Case(release=release)
    row = check.row(case)
    assert check.parameters == PARAMETERS == check.reference(case)[0].numel()
    assert row["control_relative_error"] > 0
    assert row["gradient_relative_error"] <= GRADIENT_FACTOR * row["control_relative_error"]
    assert row["control_parameter_gap"] > 0
    assert row["parameter_gap"] <= GAP_FACTOR * row["control_parameter_gap"]


@pytest.mark.parametrize("form", ["affine", "bucket", "auto"])
@pytest.mark.parametrize("release", ["reward", "submit"])
def test_float64_agrees_to_rounding(checks: dict[str, Check], release: str, form: str) -> None:
    row = checks["float64"].row(Case(release=release, form=form))
    assert 0 < row["gradient_relative_error"] <= 1e-12


def test_both_matrices_of_every_adapter_have_a_gradient_to_compare(
    checks: dict[str, Check],
) -> None:
    """At B = 0, where training starts, the gradient of A would be 0 and check nothing."""
    update, _ = checks["float64"].reference(Case())
    trained = [p for p in checks["float64"].model.parameters() if p.requires_grad]
    parts = update.split([p.numel() for p in trained])
    assert len(parts) == 2 * 2 * 3
    assert all(part.abs().max() > 0 for part in parts)
