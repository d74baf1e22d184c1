"""Is it exact? One table: for each option of the objective, whether streaming gives the synchronous
update, and why (math.md section 4).

The start-up check, docs/exactness.md and the tests read this table and nothing else.

    python -m harness.objectives.exactness > docs/exactness.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.config import Config, lookup
from harness.objectives import offpolicy
from harness.objectives.rows import Bound, Row, spelt
from harness.protocols import UsageError

SOME = Bound(">", 0, sample=0.1)
MANY = Bound(">", 1, sample=2)


def _is(key: str, value: Any, why: str, extra: Mapping[str, Any] | None = None) -> Row:
    """An exact row of one setting."""
    return Row({f"objective.{key}": value}, "exact", why, extra=extra or {})


def _kl(estimator: str, place: str) -> dict[str, Any]:
    return {
        "objective.kl.estimator": estimator,
        "objective.kl.place": place,
        "objective.kl.coefficient": SOME,
    }


def _weights(kind: str, level: str, why: str, **bounds: float) -> Row:
    return Row(
        {"objective.importance.kind": kind, "objective.importance.level": level}, "exact", why,
        extra={f"objective.importance.{name}": value for name, value in bounds.items()},
    )  # fmt: skip


_LATE = (
    "the weight of a token is known at the end of its trajectory, the normaliser is one late scalar"
)
_AFFINE = "affine in the reward within a group"
_ONE = "the ratio to the same forward is 1: the clip is inactive, the gradient is that of A log pi"
_DETACHED = (
    "detached and independent of the reward; tokens of weight 0 stay in |o_i| and in the normaliser"
)
_REGULARISED = {"objective.kl.coefficient": 0.1}
_TRUNCATED = {"objective.importance.kind": "truncate", "objective.importance.high": 1.2}
_SIGN = "which tokens enter depends on the sign of the advantage, unknown before the group closes"
_APART = (
    "independent of the reward: a gradient of its own, kept per group, that enters with the "
    "objective's weights of tokens whatever the advantages"
)
_SECOND_SCALAR = (
    "the batch's deviation divides the policy term alone, and an update has one late divisor"
)

_OPD = {"objective.name": "opd"}
_SCORED = "the teacher's scores are known when the trajectory is released, and no reward is in them"

TABLE: tuple[Row, ...] = (
    _is("aggregation", "token_mean", f"{_LATE}: the batch's action tokens"),
    _is("aggregation", "seq_mean_token_mean", f"{_LATE}: the batch's trajectories"),
    _is("aggregation", "seq_mean_token_sum", f"{_LATE}: the batch's trajectories"),
    _is("aggregation", "constant", f"{_LATE}: trajectories x constant_tokens (Dr. GRPO)"),
    _is("normaliser_scope", "batch", "one late scalar"),
    Row(
        {"objective.normaliser_scope": "micro_batch"}, "refused",
        "which trajectories share a normaliser would depend on the order of arrival",
        "objective.normaliser_scope=batch",
    ),
    _is("estimator", "mean_std_population", f"{_AFFINE} (the paper's)"),
    _is("estimator", "mean_std_sample", _AFFINE),
    _is("estimator", "mean", f"{_AFFINE} (Dr. GRPO)"),
    _is("estimator", "leave_one_out", f"{_AFFINE}: G / (G - 1) x (r - mean) (RLOO)"),
    Row(
        {"objective.estimator": "leave_one_out_std"}, "exact_with_buckets",
        "not affine, but equal rewards of a group get equal advantages",
    ),
    _is("estimator", "batch_std", f"{_AFFINE}; the batch's deviation joins the late scalar"),
    Row(
        {"objective.estimator": "batch_std"} | _kl("k2", "loss"), "refused", _SECOND_SCALAR,
        "objective.estimator=mean_std_population",
    ),
    Row(
        {"objective.estimator": "batch_std"} | _kl("k3", "loss"), "refused", _SECOND_SCALAR,
        "objective.estimator=mean_std_population",
    ),
    Row(
        {"objective.estimator": "batch_std", "objective.entropy.coefficient": SOME}, "refused",
        _SECOND_SCALAR, "objective.estimator=mean_std_population",
    ),
    _is("clip.kind", "none", "the gradient is that of A log pi"),
    _is("clip.kind", "ppo", _ONE, {"objective.clip.low": 0.2}),
    _is("clip.kind", "clip_higher", _ONE, {"objective.clip.high": 0.28}),
    _is("clip.kind", "dual_clip", _ONE, {"objective.clip.dual": 3.0}),
    Row(
        {"objective.clip.kind": "gspo", "objective.clip.form": "token"}, "exact",
        f"{_ONE}; per-token weights stay with their tokens (GSPO-token)", extra=_TRUNCATED,
    ),
    Row(
        {"objective.clip.kind": "gspo", "objective.clip.form": "sequence"}, "exact",
        f"{_ONE}; a trajectory's tokens share the mean of its per-token weights, as the gradient "
        "of the sequence ratio does",
        extra=_TRUNCATED,
    ),
    Row(
        {"objective.clip.kind": "gspo", "objective.clip.form": None}, "refused",
        "with per-token weights its two forms have different gradients, so it must be named",
        "objective.clip.form=token",
    ),
    Row(
        {"objective.clip.kind": "cispo", "objective.clip.bound": Bound(">=", 1, sample=5.0)},
        "exact", f"{_ONE}; the bound is the largest ratio itself",
    ),
    Row(
        {"objective.clip.kind": "cispo", "objective.clip.bound": Bound("<", 1, sample=0.28)},
        "refused",
        "a bound below 1 clips every token: it is the largest ratio itself, 1 + the distance",
        "objective.clip.bound=1.28",
    ),
    Row(
        {"objective.clip.kind": "covariance"}, "refused",
        "which tokens are clipped is a statistic of the whole batch", "objective.clip.kind=none",
    ),
    _is("clip.old_logprobs", "same_forward", "the ratio is 1 at fixed weights"),
    Row(
        {"objective.clip.old_logprobs": "engine"}, "refused",
        "the ratio to the engine is not 1, and whether it is clipped depends on the sign of the "
        "advantage, unknown before the group closes",
        "objective.clip.old_logprobs=same_forward objective.importance.kind=truncate "
        "objective.importance.high=2",
    ),
    _is("importance.kind", "none", "every token has weight 1"),
    _weights("truncate", "token", f"{_DETACHED} (TIS)", high=1.2),
    _weights("truncate", "sequence", f"{_DETACHED}; one ratio per trajectory", high=1.2),
    _weights("mask", "token", f"{_DETACHED} (IcePop)", low=0.7, high=1.4),
    _weights(
        "mask", "sequence", f"{_DETACHED}; a trajectory's ratio is its weight, or 0",
        low=0.5, high=2.0,
    ),
    _is("advantage_mask", "none", "every token enters"),
    Row(
        {"objective.advantage_mask": "positive"}, "refused", _SIGN,
        "objective.advantage_mask=none",
    ),
    Row(
        {"objective.advantage_mask": "negative"}, "refused", _SIGN,
        "objective.advantage_mask=none",
    ),
    Row(_kl("k2", "loss"), "exact", f"{_APART}; its gradient is that of KL(policy || reference)"),
    Row(
        _kl("k3", "loss"), "exact",
        f"{_APART}; its gradient is that of KL(reference || policy), and 0 where the reference is "
        "more than e^20 times likelier",
    ),
    Row(
        _kl("k1", "loss"), "refused", "its gradient has expectation 0: pure noise",
        "objective.kl.estimator=k2",
    ),
    Row(
        _kl("k1", "reward"), "exact",
        "a scalar known when the trajectory ends, subtracted from its reward; rewards become "
        "distinct: the affine form holds two buffers a group",
    ),
    Row(
        _kl("k2", "reward"), "refused", "in the reward only k1 has the gradient of a KL",
        "objective.kl.estimator=k1",
    ),
    Row(
        _kl("k3", "reward"), "refused", "in the reward only k1 has the gradient of a KL",
        "objective.kl.estimator=k1",
    ),
    Row(
        {"objective.entropy.estimator": "full", "objective.entropy.coefficient": SOME}, "exact",
        f"{_APART}; over the full vocabulary",
    ),
    Row(
        {"objective.entropy.estimator": "sampled", "objective.entropy.coefficient": SOME},
        "refused", "the gradient of the sampled -log pi has expectation 0: pure noise",
        "objective.entropy.estimator=full",
    ),
    _is("overlong.mask", False, "every trajectory enters"),
    Row(
        {"objective.overlong.mask": True, "objective.overlong.in_group_mean": True}, "exact",
        "decided at the end of the trajectory; a masked one is not trained on, its reward stays in "
        "the mean and deviation of its group",
        extra=_REGULARISED,
    ),
    Row(
        {"objective.overlong.mask": True, "objective.overlong.in_group_mean": False}, "exact",
        "mean and deviation are those of the others; what is masked is known before the close",
    ),
    Row(
        {"objective.overlong.mask": True, "objective.overlong.in_normaliser": True}, "exact",
        "tokens and trajectories that are masked stay in the normaliser",
    ),
    Row(
        {"objective.overlong.mask": True, "objective.overlong.in_normaliser": False}, "exact",
        "tokens and trajectories that are masked leave the normaliser, a late scalar",
    ),
    _is(
        "dynamic_sampling", "none",
        "a group of equal rewards loses its policy term alone: its reward-independent terms stay, "
        "and its tokens in the normaliser",
        _REGULARISED,
    ),
    _is(
        "dynamic_sampling", "filter",
        "decided when a group closes, from its own rewards: its reward-independent terms leave "
        "with it, and its tokens leave the normaliser",
        _REGULARISED,
    ),
    Row(
        {"objective.dynamic_sampling": "refill"}, "refused",
        "which groups fill the batch would depend on the order of arrival: another batch",
        "objective.dynamic_sampling=filter",
    ),
    _is("epochs", 1, "the ratio is 1"),
    Row(
        {"objective.epochs": MANY}, "refused",
        "from the second pass on the ratio is not 1: the clip depends on the advantage",
        "objective.epochs=1",
    ),
    _is("minibatches", 1, "one optimizer step per batch at fixed weights"),
    Row(
        {"objective.minibatches": MANY}, "refused",
        "from the second step on the ratio is not 1, and which trajectories share a step would "
        "depend on the order of arrival",
        "objective.minibatches=1",
    ),
    _is("router_balance", 0, "the router is trained by the objective alone"),
    Row(
        {"objective.router_balance": SOME}, "refused",
        "a balance loss is a statistic of the tokens that share a forward pass",
        "objective.router_balance=0",
    ),
    Row(
        {"objective.top_k": 0}, "exact",
        f"{_SCORED}: a token's weight is its detached -(log policy - log teacher)", extra=_OPD,
    ),
    Row(
        {"objective.top_k": Bound(">", 0, sample=8)}, "exact",
        f"{_SCORED}: the reverse KL over the teacher's likeliest tokens and one more outcome, all "
        "the others",
        extra=_OPD,
    ),
    Row({"objective.discount": 0}, "exact", "no later token counts", extra=_OPD),
    Row(
        {"objective.discount": SOME}, "exact",
        "the log-ratios of later tokens are known with the trajectory's last; refused for "
        "schedule.release=turn, which does not wait for them",
        extra=_OPD,
    ),
    Row(
        {"objective.top_k": Bound(">", 0, sample=8), "objective.discount": SOME}, "refused",
        "a discounted sum is one of sampled log-ratios", "objective.top_k=0", extra=_OPD,
    ),
    Row(
        {"objective.task_weight": 0}, "exact",
        "every trajectory has weight 1: no reward, no group, nothing degenerate", extra=_OPD,
    ),
    Row(
        {"objective.task_weight": SOME}, "exact",
        f"{_APART}; the rewards' policy term has the task's weight", extra=_OPD,
    ),
    Row(
        {"objective.estimator": "batch_std", "objective.task_weight": SOME}, "refused",
        _SECOND_SCALAR, "objective.estimator=mean_std_population", extra=_OPD,
    ),
    Row({"learner.dropout": 0}, "exact", "a forward pass does not depend on its neighbours"),
    Row(
        {"learner.dropout": SOME}, "refused",
        "which units are dropped depends on how trajectories are batched", "learner.dropout=0",
    ),
)  # fmt: skip


def check(config: Config) -> None:
    """Raises UsageError for the first option that cannot be streamed exactly."""
    for row in TABLE:
        if row.verdict == "refused" and row.applies(config):
            key = next(iter(row.option))
            raise UsageError(f"{key}={spelt(lookup(config, key))}: {row.why}; take {row.nearest}")


def markdown() -> Iterator[str]:
    """The lines of docs/exactness.md."""
    yield from PREFACE.splitlines()
    yield "| option | streaming | why | nearest exact setting |"
    yield "|---|---|---|---|"
    verdicts = {"exact_with_buckets": "exact, `ledger.form=bucket`"}
    for row in TABLE:
        option = "<br>".join(f"`{part}`" for part in str(row).split(", "))
        nearest = f"`{row.nearest}`" if row.nearest else ""
        why = row.why.replace("||", "\\|\\|").replace("|o_i|", "\\|o_i\\|")
        yield f"| {option} | {verdicts.get(row.verdict, row.verdict)} | {why} | {nearest} |"
    yield from offpolicy.markdown()


PREFACE = """\
# Is it exact?

Generated by `python -m harness.objectives.exactness > docs/exactness.md`. A test compares the two;
another runs every row: an exact one through both schedules and against a plain reference, a refused
one to its error.

*Exact* means: with one optimizer step per batch at fixed weights, gradient streaming gives the
synchronous update up to rounding, whatever the order of arrival. What is refused is refused for
every schedule, so that no two runs of a comparison differ in their objective.

* The reward-independent terms (KL in the loss, entropy) have the aggregation of the policy term:
  the same weight of a token, the same normaliser. Importance weights multiply the policy term
  alone.
* Tokens whose importance weight is 0 stay in |o_i| and in the normaliser.
* A group whose rewards are all equal loses its policy term alone, unless
  `objective.dynamic_sampling=filter`.
* KL in the reward: `reward` in trajectories.jsonl is the shaped one; the verdict's own is
  `report.verdict_reward`, and accuracy and the mean reward are of the verdict.

"""


if __name__ == "__main__":
    print("\n".join(markdown()))
