"""What made-up trajectories need for an objective's further terms: how they ended, what the engine
and a teacher thought of their tokens, a reference that the policy has left, penalties on rewards.
"""

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
from harness.objectives import contradictions, exactness, opd
from harness.protocols import Group, TeacherScores, UsageError
from harness.schedule_rules import whole_trajectories
from harness.sequences import spans
from harness.validation import check_values

# What a distillation is checked with where no setting of it is given.
DISTILLATIONS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "top_k": {"top_k": 16},
    "discount": {"discount": 0.9},
    "with_task": {"task_weight": 0.5},
}
ENDS = ("submit", "submit", "submit", "turn_limit", "context_limit")


def parse(settings: Sequence[str], name: str = "grpo") -> ObjectiveConfig:
    """An objective from `objective.key=value` arguments. Raises UsageError for what cannot be
    streamed exactly, or at all."""
    try:
        keys = [f"name={name}", *(s.removeprefix("objective.") for s in settings)]
        given = OmegaConf.from_dotlist(keys)
        node = OmegaConf.merge(OmegaConf.structured(ObjectiveConfig), given)
        objective: Any = OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise UsageError(f"{' '.join(settings)}: {str(error).splitlines()[0]}") from error
    config = Config(objective=objective)
    check_values(config, "objective.")
    contradictions.check(objective)
    opd.check(config)
    exactness.check(config)
    return objective


def variants(objective: ObjectiveConfig) -> dict[str, ObjectiveConfig]:
    """The objectives to check, by name: every distillation where none is said; else the given
    one."""
    if objective.name != "opd":
        return {objective.name: objective}
    if any(getattr(objective, key) for way in DISTILLATIONS.values() for key in way):
        return {"given": objective}
    return {name: replace(objective, **way) for name, way in DISTILLATIONS.items()}


def takes(estimator: str, terms: ObjectiveConfig, release: str = "reward") -> bool:
    """Whether an update with this estimator and these terms can be streamed exactly, at this rung.
    A distillation without a task has no estimator: it is checked under the default one."""
    if terms.name == "opd" and not terms.task_weight and estimator != ObjectiveConfig().estimator:
        return False
    config = Config(objective=replace(terms, estimator=estimator))
    if release == "turn" and next(whole_trajectories(config), None):
        return False
    return not any(row.verdict == "refused" and row.applies(config) for row in exactness.TABLE)


def left_behind(model: Any) -> Any:
    """A frozen reference a little way off the model's weights: at its own a KL has no gradient."""
    reference = copy.deepcopy(model).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in reference.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.add_(noise.to(parameter), alpha=0.1 * float(parameter.square().mean().sqrt()))
    return reference


def teach(groups: Sequence[Group], model: Any, top_k: int) -> None:
    """Scores of a teacher a little way off the policy, over the vocabulary's probabilities."""
    teacher = left_behind(model)
    for t in (t for g in groups for t in g.trajectories):
        t.teacher = TeacherScores()
        for start, end in spans(t):
            tokens = torch.tensor([t.tokens_T[start:end]])
            acts = torch.tensor(t.action_mask_T[start + 1 : end], dtype=torch.bool)
            with torch.no_grad():
                logprobs_NV = teacher(input_ids=tokens).logits[0, :-1][acts].log_softmax(-1)
            chosen_N = logprobs_NV.gather(1, tokens[0, 1:][acts][:, None])[:, 0]
            scores = TeacherScores(chosen_N.tolist())
            if top_k:
                top = logprobs_NV.topk(top_k, -1)
                scores.top_tokens_NK = top.indices.tolist()
                scores.top_logprobs_NK = top.values.tolist()
            t.teacher.extend(scores)


def furnish(groups: Sequence[Group], model: Any, objective: ObjectiveConfig, seed: int) -> None:
    """Complete trajectories in place, as far as the objective needs it."""
    draw = random.Random(seed)
    if objective.name == "opd":
        teach(groups, model, objective.top_k)
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
