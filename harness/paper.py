"""The learner on paper of a run's configuration: of one that learns nothing, and of one whose real
learner is charged for (harness/charged)."""

from __future__ import annotations

from harness.config import Config
from harness.contention import Cores
from harness.costs.model import CostModel
from harness.learner.simulated import SimulatedLearner
from harness.parts import ledger_form
from harness.virtual import VirtualClock


def paper_learner(
    config: Config,
    costs: CostModel,
    clock: VirtualClock,
    cores: Cores | None,
    *,
    repack: bool = False,
    max_live_bytes: int | None = None,
) -> SimulatedLearner:
    """`cores` are those that it shares with others; `repack` and `max_live_bytes` as for
    SimulatedLearner."""
    colocated = config.schedule.placement == "colocated"
    return SimulatedLearner(
        costs,
        clock,
        ranks=costs.learner_ranks,
        chunk_tokens=config.schedule.chunk_tokens,
        learning_rate=config.schedule.learning_rate,
        form=ledger_form(config),
        bucket_cap=config.ledger.bucket_cap or config.rollout.group_size,
        switch_s=costs.switch_s() if colocated else 0.0,
        cores=cores,
        repack=repack,
        max_live_bytes=max_live_bytes,
    )
