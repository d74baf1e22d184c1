"""What made-up trajectories need for an objective's further terms: how they ended, what the engine
thought of their tokens, a reference that the policy has left, penalties on rewards."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config import Config, ObjectiveConfig
from harness.learner.client import scored
from harness.learner.scoring import Scorer
from harness.objectives import contradictions, exactness
from harness.protocols import Group, UsageError
from harness.validation import check_values

ENDS = ("submit", "submit", "submit", "turn_limit", "context_limit")


def parse(settings: Sequence[str]) -> ObjectiveConfig:
    """An objective from `objective.key=value` arguments. Raises UsageError for what cannot be
    streamed exactly, or at all."""
    try:
        given = OmegaConf.from_dotlist([s.removeprefix("objective.") for s in settings])
        node = OmegaConf.merge(OmegaConf.structured(ObjectiveConfig), given)
        objective: Any = OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise UsageError(f"{' '.join(settings)}: {str(error).splitlines()[0]}") from error
    config = Config(objective=objective)
    check_values(config, "objective.")
    contradictions.check(objective)
    exactness.check(config)
    return objective


def takes(estimator: str, terms: ObjectiveConfig) -> bool:
    """Whether an update with this estimator and these terms can be streamed exactly."""
    config = Config(objective=replace(terms, estimator=estimator))
    return not any(row.verdict == "refused" and row.applies(config) for row in exactness.TABLE)


def left_behind(model: Any) -> Any:
    """A frozen reference a little way off the model's weights: at its own a KL has no gradient."""
    reference = copy.deepcopy(model).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in reference.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.add_(noise.to(parameter), alpha=0.1 * float(parameter.square().mean().sqrt()))
    return reference


def furnish(groups: Sequence[Group], model: Any, objective: ObjectiveConfig, seed: int) -> None:
    """Complete trajectories in place, as far as the objective needs it."""
    draw = random.Random(seed)
    kl = objective.kl
    in_reward = kl.place == "reward" and kl.coefficient > 0.0
    scorer = Scorer(model, 1.0, objective, left_behind(model) if in_reward else None)
    for t in (t for g in groups for t in g.trajectories):
        t.end = draw.choice(ENDS)
        if objective.importance.kind != "none":
            own = iter(scorer.token_logprobs(scored(t)))
            t.behaviour_logprobs_T = [
                next(own) + draw.gauss(0.0, 0.3) if m else 0.0 for m in t.action_mask_T
            ]
        if in_reward and t.reward is not None:
            t.reward -= kl.coefficient * scorer.reference_kl(scored(t))
