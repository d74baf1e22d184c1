"""What a wall run has recorded, under the virtual clock: its learning for real, its seconds a cost
model's."""

from __future__ import annotations

from typing import Any

from harness.charged import settings as charged
from harness.charged.learner import ChargedLearner
from harness.charged.workshop import Workshop
from harness.config import Config
from harness.contention import Cores
from harness.costs.select import cost_model
from harness.engines.simulated import DecodeCosts, Replica, Request, SimulatedEngine
from harness.learner.torch_learner import TorchLearner
from harness.paper import paper_learner
from harness.protocols import Completion, Generation, UsageError
from harness.virtual import Future, VirtualClock


class RecordedEngine(SimulatedEngine):
    """The Engine protocol for a replay: forced tokens alone, in the time that making so many takes.
    A request's prompt is what is new of its session, as for a real engine."""

    def __init__(
        self,
        costs: DecodeCosts,
        clock: VirtualClock,
        *,
        replicas: int,
        slots: int,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(costs, clock, replicas=replicas, slots=slots, cores=cores)
        self._contexts: dict[str, int] = {}

    async def generate(self, request: Generation) -> Completion:
        assert request.forced_T is not None, "a replay forces its tokens"
        answer: Future[Completion] = Future(self._clock)
        context = self._contexts.get(request.session, 0) + len(request.prompt_T)
        self._contexts[request.session] = context + len(request.forced_T)
        replica: Replica = self._place(request.session)
        replica.submit(Request(request.session, context, len(request.forced_T), answer))
        return await answer

    async def release(self, session: str) -> None:
        self._contexts.pop(session, None)
        await super().release(session)


def recorded_learner(
    config: Config,
    clock: VirtualClock,
    workshop: Workshop,
    options: dict[str, Any],
    threads: int,
    cores: Cores | None = None,
) -> ChargedLearner:
    """A learner of `options` (harness.parts.learner_options) that is charged what config.hardware
    says, on `cores` that others share. Of a run on the wall clock the passes are those that are
    asked for. Raises UsageError for a learner of several processes, and for hardware without a cost
    model."""
    if options["placement"].ranks > 1:
        raise UsageError(
            f"learner.ranks={options['placement'].ranks}: under clock=virtual one process learns, "
            "whose sums are not those of several; take clock=wall"
        )
    costs = cost_model(config)
    virtual = charged.asked(config)
    paper = paper_learner(config, costs, clock, cores, repack=virtual)
    real = TorchLearner(**options | {"ledger_plan": None, "threads": threads})
    behaviour = options["objective"].importance.kind != "none"
    return ChargedLearner(paper, real, workshop, None, behaviour, repack=virtual)
