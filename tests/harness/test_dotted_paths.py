"""Everything that is loaded by dotted path, so that no hidden import goes against the direction."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cluster.worker import load

_ROOT = Path(__file__).parents[2]
_ALLOWED = {
    "baselines.asynchronous:Asynchronous",
    "baselines.one_step_off:OneStepOff",
    "baselines.sync:Sync",
    "configs.schemas:register",
    "environments.swebench.environment:SweBench",
    "environments.swebench.mini.dataset:MiniSource",
    "environments.swebench.pypi:PypiSource",
    "environments.terminal_bench.environment:TerminalBench",
    "harness.cluster.sandbox_service:SandboxService",
    "harness.engines.torch_engine:TorchEngine",
    "harness.engines.vllm_engine:VllmEngine",
    "harness.experiment:execute",
    "harness.gate.speeds:Speeds",
    "harness.learner.torch_learner:TorchLearner",
    "harness.serving.continuous:Continuous",
    "harness.serving.generate:Generate",
    "harness.serving.ours:Ours",
    "harness.serving.vllm_peer:Vllm",
    "harness.serving.vllm_peer:VllmCompiled",
    "harness.serving.vllm_peer:VllmForTraining",
    "harness.teachers.torch_teacher:TorchTeacher",
    "thundersync.ledger:GradientLedger",
    "thundersync.segments:TurnGradients",
    "thundersync.stream:Stream",
}
_DOTTED = re.compile(
    r"""["'\s]((?:baselines|configs|environments|harness|results|thundersync)(?:\.\w+)+:\w+)"""
)


def _found() -> set[str]:
    files = [
        path
        for package in ("baselines", "configs", "environments", "harness", "results", "thundersync")
        for path in (_ROOT / package).rglob("*")
        if path.suffix in (".py", ".yaml")
    ]
    return {name for path in files for name in _DOTTED.findall(path.read_text(encoding="utf-8"))}


def test_only_the_listed_targets_are_loaded_by_name() -> None:
    assert _found() == _ALLOWED


@pytest.mark.parametrize("target", sorted(_ALLOWED))
def test_every_listed_target_exists(target: str) -> None:
    assert callable(load(target))
