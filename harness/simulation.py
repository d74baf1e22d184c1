"""env=simulated: the parts of a run in virtual time, and what contradicts it. Torch-free.

The schedule, the rollouts, the budget and the training are those of a real run; engine, learner,
sandboxes and the clock are on paper. What is found out from the hardware's cost model (how many
replicas, how many ranks) is written into the configuration before anything reads it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.charged import settings as charged
from harness.config import Config, EvaluationConfig, lookup
from harness.protocols import UsageError
from harness.virtual import VirtualClock

if TYPE_CHECKING:
    from harness.parts import Parts

# key -> the value that stands for work that is not done
_PARTS = {
    "env.name": "simulated",
    "engine.name": "simulated",
    "learner.name": "simulated",
    "sandbox.kind": "simulated",
    "clock.kind": "virtual",
    "policy.name": "simulated",
}
# key -> (the only value, why)
_ONLY = {
    "agent.name": ("policy", "agents play what the workload plans"),
    "objective.name": ("grpo", "there is no teacher to ask"),
    "objective.kl.coefficient": (0.0, "there is no reference to compare with"),
    "objective.entropy.coefficient": (0.0, "there are no probabilities"),
    "parity.every": (0, "there are no gradients to compare"),
    "replay": (None, "workload.trace=FILE plays recorded lives"),
    "policy.path": (None, "hardware.shape says which policy is meant"),
    "evaluation.initial": (False, "nothing is learnt that could be evaluated"),
    "evaluation.final": (False, "nothing is learnt that could be evaluated"),
    "cluster.pin_cores": (False, "nothing runs on cores"),
    "rollout.history_turns": (None, "no prompt is written, so that none is rewritten"),
    "rollout.tool_wait.median_s": (0.0, "workload.tool_s says what tool calls take"),
    "learner.parallel": ("ddp", "ranks take whole trajectories"),
}


def asked(config: Config) -> bool:
    """Whether a run is in virtual time. Raises UsageError where parts contradict one another."""
    on_paper = [key for key, value in _PARTS.items() if lookup(config, key) == value]
    if not on_paper:
        return False
    for key, value in _PARTS.items():
        found = lookup(config, key)
        if found == value:
            continue
        if config.env.name == "simulated":
            raise UsageError(f"{key}={found}: env=simulated runs with {value} alone")
        raise UsageError(
            f"{on_paper[0]}={lookup(config, on_paper[0])}: {key}={found} does real work, which "
            "virtual time cannot wait for; take env=simulated for all of them, or none"
        )
    return True


def settle(config: Config) -> None:
    """Check a virtual run's settings and fill in what its hardware says: engine.replicas,
    and learner.ranks. Nothing in a real run. Raises UsageError."""
    if charged.asked(config):
        charged.settle(config)
    if charged.asked(config) or not asked(config):
        return
    from harness.costs.select import settle_split

    for key, (only, why) in _ONLY.items():
        found = lookup(config, key)
        if found != only:
            raise UsageError(f"{key}={found}: env=simulated takes {only} alone: {why}")
    if list(config.evaluation.marks) != EvaluationConfig().marks:
        raise UsageError(
            f"evaluation.marks={list(config.evaluation.marks)}: env=simulated keeps no weights; "
            "leave it empty"
        )
    config.workload.check()
    if config.workload.name == "none" and config.workload.trace is None:
        raise UsageError(
            "workload=none: env=simulated has no tasks of its own; take one, such as "
            "workload=swebench_verified"
        )
    settle_split(config)


@contextlib.asynccontextmanager
async def open_simulated(
    config: Config, clock: VirtualClock, *, say: Callable[[str], None]
) -> AsyncIterator[Parts]:
    """The parts of a virtual run; nothing is started, and nothing is left."""
    from environments.simulated.environment import Simulated
    from environments.simulated.sandbox import SimulatedProvider
    from environments.simulated.workload import Limits, make_workload
    from harness.cluster.select import paper_facts
    from harness.contention import Cores
    from harness.costs.select import cost_model
    from harness.engines.simulated import SimulatedEngine
    from harness.paper import paper_learner
    from harness.parts import Parts
    from harness.planned import PlannedAgent

    costs, rollout = cost_model(config), config.rollout
    limits = Limits(rollout.max_turns, rollout.max_new_tokens, rollout.max_context_tokens)
    workload = make_workload(config.workload, limits)
    facts = {"workload": json.dumps(asdict(config.workload), sort_keys=True)}
    environment = Simulated(config.env, workload, config.seed, facts)
    why = f"VIRTUAL: durations of workload={config.workload.name} on {costs.label}"
    cores = None
    if costs.shares_cores:
        devices = config.schedule.engine_devices, config.schedule.learner_devices
        cores = Cores(costs.contention, clock, *devices)
    provider = SimulatedProvider(
        clock,
        why,
        config.sandbox.max_parallel,
        config.sandbox.start_parallel,
        None if cores is None else cores.sandbox,
        config.hardware.start_gap_s,
    )
    say(why)
    if costs.assumed:
        say(f"VIRTUAL: assumed, without a source: {', '.join(costs.assumed)}")
    engine = SimulatedEngine(
        costs, clock, replicas=costs.engine_replicas, slots=config.engine.slots, cores=cores
    )
    learner = paper_learner(
        config, costs, clock, cores, max_live_bytes=config.segments.max_live_bytes
    )
    try:
        yield Parts(
            clock, environment, provider, engine, learner, None, None,
            agents=lambda temperature: lambda task: PlannedAgent(engine, task.payload["life"]),
            cluster=paper_facts(config),
        )  # fmt: skip
    finally:
        await clock.cancel_all()
        await provider.close()
