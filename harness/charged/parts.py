"""The parts of a run that learns for real in virtual time, and their end."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.agents import Agent
from harness.charged.environment import ChargedEnvironment
from harness.charged.lives import ChargedAgent, Lengths, lived, per_turn
from harness.charged.sandboxes import ChargedProvider
from harness.charged.settings import THREADS
from harness.charged.workshop import Workshop
from harness.cluster.protocol import Cluster
from harness.cluster.select import open_for_workshop
from harness.cluster.worker import load
from harness.config import Config
from harness.contention import Cores
from harness.costs.model import CostModel
from harness.costs.select import cost_model
from harness.evaluation import check_held_out
from harness.paper import paper_learner
from harness.parts import (
    ENVIRONMENTS,
    Parts,
    learner_options,
    open_sandboxes,
    policy_agent,
)
from harness.policy.load import resolve
from harness.policy.tokenizer import ChatTokens
from harness.prompts import check_prompts
from harness.protocols import Task
from harness.virtual import VirtualClock

# Real commands at once: few enough that each has a core soon, so that none runs into its time limit
# because others do.
_COMMANDS = 2 * (os.cpu_count() or 1)


@contextlib.asynccontextmanager
async def open_charged(
    config: Config,
    clock: VirtualClock,
    run_id: str,
    weights: Path,
    *,
    say: Callable[[str], None],
) -> AsyncIterator[Parts]:
    """Real tasks, sandboxes, engine and learner, whose times the cost model and the workload say.
    All is ended on the way out."""
    if config.replay is not None:
        async with _open_replay(config, clock, weights, say) as parts:
            yield parts
        return
    costs = cost_model(config)
    real = load(ENVIRONMENTS[config.env.name])(config.env)
    on_evaluation = check_held_out(real, config.env.split, config.env.eval_split, config.env)
    folder = resolve(config.policy.path or config.policy.name)
    chat = ChatTokens(folder, config.policy.chat_template)
    splits = sorted({config.env.split, config.env.eval_split})
    check_prompts(real, splits, chat, config.rollout, say)
    workload = per_turn(config.workload, config.rollout.max_turns)
    facts = {"workload": json.dumps(asdict(config.workload), sort_keys=True)}
    environment = ChargedEnvironment(real, workload, config.seed, facts)
    cores = _cores(config, costs, clock)
    lengths = Lengths()
    workshop = Workshop()
    stack = contextlib.ExitStack()
    try:
        cluster = stack.enter_context(open_for_workshop(config, workshop.begin, say=say))
        provider = _provider(config, real, run_id, clock, workshop, cores, cluster)
        try:
            say(f"VIRTUAL: times of workload={config.workload.name}; sandbox: {provider.real.why}")
            say(f"VIRTUAL: real learning of policy={config.policy.name}, charged as {costs.label}")
            if costs.assumed:
                say(f"VIRTUAL: assumed, without a source: {', '.join(costs.assumed)}")
            environment.warm_up()
            engine = _engine(config, costs, clock, folder, cores)
            learner = _learner(config, costs, clock, folder, weights, workshop, lengths, cores)
            parts = Parts(
                clock, environment, provider, engine, learner, chat, folder, None, on_evaluation,
                cluster=cluster.facts(),
            )  # fmt: skip

            def agents(temperature: float) -> Callable[[Task], Agent]:
                policy = policy_agent(config, parts, temperature)
                return lambda task: ChargedAgent(policy, lived(task)[1], lengths, engine.expect)

            parts.agents = agents
            try:
                yield parts
            finally:
                await clock.cancel_all()  # rollouts use the rest
        finally:
            await provider.close()
    finally:
        stack.close()
        workshop.close()


@contextlib.asynccontextmanager
async def _open_replay(
    config: Config, clock: VirtualClock, weights: Path, say: Callable[[str], None]
) -> AsyncIterator[Parts]:
    """Recorded tokens and times of tools and verifications; decoding and learning are charged, and
    learning is real."""
    from harness.charged.again import RecordedEngine, recorded_learner

    costs = cost_model(config)
    folder = resolve(config.policy.path or config.policy.name)
    say(f"VIRTUAL: real learning of {config.replay}, charged as {costs.label}")
    if costs.assumed:
        say(f"VIRTUAL: assumed, without a source: {', '.join(costs.assumed)}")
    cores = _cores(config, costs, clock)
    replicas, slots = costs.engine_replicas, config.engine.slots
    engine = RecordedEngine(costs, clock, replicas=replicas, slots=slots, cores=cores)
    workshop = Workshop()
    try:
        options = learner_options(config, folder, weights)
        learner = recorded_learner(config, clock, workshop, options, THREADS, cores)
        environment: Any = load(ENVIRONMENTS[config.env.name])(config.env)
        try:
            yield Parts(
                clock,
                environment,
                None,
                engine,
                learner,
                ChatTokens(folder, config.policy.chat_template),
                folder,
                None,
            )
        finally:
            await clock.cancel_all()
    finally:
        workshop.close()


def _cores(config: Config, costs: CostModel, clock: VirtualClock) -> Cores | None:
    if not costs.shares_cores:
        return None
    devices = config.schedule.engine_devices, config.schedule.learner_devices
    return Cores(costs.contention, clock, *devices)


def _provider(
    config: Config,
    real: Any,
    run_id: str,
    clock: VirtualClock,
    workshop: Workshop,
    cores: Cores | None,
    cluster: Cluster,
) -> ChargedProvider:
    sandbox = replace(config.sandbox, exec_parallel=_COMMANDS)
    opened = open_sandboxes(real, replace(config, sandbox=sandbox), run_id, True, cluster)
    return ChargedProvider(
        clock,
        workshop,
        workshop.begin(opened).result(),
        config.sandbox.max_parallel,
        config.sandbox.start_parallel,
        None if cores is None else cores.sandbox,
    )


def _engine(
    config: Config, costs: CostModel, clock: VirtualClock, folder: Path, cores: Cores | None
) -> Any:
    from harness.charged.engine import ChargedEngine
    from harness.engines.torch_engine import TorchEngine

    at_once = min(config.engine.slots * costs.engine_replicas, config.sandbox.max_parallel)
    real = TorchEngine(str(folder), at_once, config.rollout.max_context_tokens)
    return ChargedEngine(
        costs, clock, real, replicas=costs.engine_replicas, slots=config.engine.slots, cores=cores
    )


def _learner(
    config: Config,
    costs: CostModel,
    clock: VirtualClock,
    folder: Path,
    weights: Path,
    workshop: Workshop,
    lengths: Lengths,
    cores: Cores | None,
) -> Any:
    from harness.charged.learner import ChargedLearner
    from harness.learner.torch_learner import TorchLearner

    options = learner_options(config, folder, weights)
    options |= {"ledger_plan": None, "threads": THREADS}
    paper = paper_learner(config, costs, clock, cores, repack=True)
    behaviour = options["objective"].importance.kind != "none"
    return ChargedLearner(paper, TorchLearner(**options), workshop, lengths, behaviour)
