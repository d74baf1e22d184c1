"""Builds the parts of a run from its configuration, and ends them, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.agents import Agent, PolicyAgent, scripted
from harness.charged import settings as charged
from harness.clock import WallClock
from harness.cluster.local import LocalCluster
from harness.cluster.pinning import cores
from harness.cluster.protocol import Cluster
from harness.cluster.select import open_cluster
from harness.cluster.worker import load
from harness.config import Config
from harness.engines.select import open_engine
from harness.evaluation import check_held_out
from harness.footprint import pass_bytes
from harness.learner.client import TorchLearnerClient
from harness.learner.placement import Placement
from harness.learner.turn_options import TurnOptions
from harness.memory import ledger_plan
from harness.objectives import offpolicy
from harness.objectives.estimators import ESTIMATORS
from harness.policy import lora
from harness.prompts import check_prompts
from harness.protocols import Clock, Environment, Learner, SandboxProvider, Task, Trajectory
from harness.rollout import MakeAgent, Penalty, Rollouts
from harness.schedule_rules import whole_trajectories
from harness.teachers.protocol import Teacher
from harness.teachers.scoring import Scoring

ENVIRONMENTS = {
    "swebench": "environments.swebench.environment:SweBench",
    "terminal_bench": "environments.terminal_bench.environment:TerminalBench",
}


@dataclass
class Parts:
    """What a run is made of. `provider` is None in a replay, `engine` for scripted agents,
    `learner` where nothing trains."""

    clock: Clock
    environment: Environment
    provider: Any
    engine: Any
    learner: Any
    chat: Any
    policy_folder: Path | None
    teacher: Teacher | None = None  # where the objective has one, and something trains
    trains_on_evaluation: bool = False  # on tasks that were made for evaluation, as asked
    # Who acts in virtual time, at a sampling temperature; None where agent.name says it.
    agents: Callable[[float], MakeAgent] | None = None
    cluster: Mapping[str, Any] | None = None  # what of it is where, for the manifest


@contextlib.asynccontextmanager
async def open_parts(
    config: Config,
    run_id: str,
    weights: Path | None,
    *,
    say: Callable[[str], None],
    tracker_ready: Callable[[], None] | None = None,
) -> AsyncIterator[Parts]:
    """Start sandboxes, engine and learner side by side. `weights` is where the learner publishes;
    None means no training. `say` gets one line as soon as the kind of
    sandbox is known, `tracker_ready` waits for the tracker's store. On the way out every
    process and sandbox is ended."""
    clock = WallClock()
    environment: Environment = load(ENVIRONMENTS[config.env.name])(config.env)
    on_evaluation = False
    if weights is not None and config.replay is None:  # before anything is started
        env = config.env
        on_evaluation = check_held_out(environment, env.split, env.eval_split, env)
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(config, weights, say=say))
        provider: SandboxProvider | None = None
        if config.replay is None:
            trains = weights is not None
            provider = await open_sandboxes(environment, config, run_id, trains, cluster)
            stack.push_async_callback(provider.close)
            say(f"sandbox: {provider.why}")
        engine = learner = chat = folder = teacher = None

        def slow_imports() -> None:
            # One after the other: two threads that parse source at once can meet a defect of
            # CPython before 3.11.8 ("AST constructor recursion depth mismatch").
            if tracker_ready is not None:
                tracker_ready()
            environment.warm_up()

        starts = [asyncio.to_thread(slow_imports)]
        if config.agent.name == "policy":
            from harness.policy.load import resolve
            from harness.policy.tokenizer import ChatTokens
            from harness.teachers.select import make_teacher

            folder = resolve(config.policy.path or config.policy.name)
            chat = ChatTokens(folder, config.policy.chat_template)
            if config.replay is None:
                splits = (
                    {config.env.split, config.env.eval_split} if weights else {config.env.split}
                )
                check_prompts(environment, sorted(splits), chat, config.rollout, say)
            _, learner_cores = cores(config)
            engine = open_engine(config, folder, cluster, say)
            stack.push_async_callback(engine.close)
            starts.append(engine.start())
            if weights is not None:
                learner = TorchLearnerClient(
                    learner_options(config, folder, weights),
                    threads=learner_threads(config),
                    affinity=learner_cores,
                    worker=cluster.worker,
                )
                stack.push_async_callback(learner.close)
                starts.append(learner.start())
                teacher = make_teacher(config, folder, cluster.worker)
                if teacher is not None:
                    stack.push_async_callback(teacher.close)
                    starts.append(teacher.start())
        await asyncio.gather(*starts)
        stack.push_async_callback(clock.cancel_all)  # first on the way out: rollouts use the rest
        yield Parts(
            clock, environment, provider, engine, learner, chat, folder, teacher, on_evaluation,
            cluster=cluster.facts(),
        )  # fmt: skip


async def open_sandboxes(
    environment: Environment,
    config: Config,
    run_id: str,
    trains: bool,
    cluster: Cluster | None = None,
) -> SandboxProvider:
    """Sandboxes of the kind that the data set's first task can have. Those that a batch (or else
    the evaluation) begins with are made ahead, where all its tasks start from the same."""
    from environments.sandbox.options import ProviderOptions
    from environments.sandbox.pool import kind_of

    specs = [environment.sandbox_spec(task) for task in environment.tasks(config.env.split)]
    first, sandbox = specs[0], config.sandbox
    samples = min(len(specs), config.evaluation.tasks or len(specs))
    samples *= config.evaluation.samples_per_task
    batch = config.rollout.group_size * config.rollout.groups_per_batch
    arguments = {
        "kind": sandbox.kind,
        "image": first.build.base if first.build is not None else first.image,
        "run_id": run_id,
        "max_parallel": sandbox.max_parallel,
        "options": ProviderOptions(
            warm=sandbox.warm,
            time_to_live_s=sandbox.time_to_live_s,
            start_parallel=sandbox.start_parallel,
            exec_parallel=sandbox.exec_parallel,
            hosts=list(sandbox.hosts),
            host_parallel=list(sandbox.host_parallel),
            disk_free_mb=sandbox.disk_free_mb,
            mirrors=list(sandbox.mirrors),
        ),
        "expect": first if len({kind_of(spec) for spec in specs}) == 1 else None,
        "expect_parallel": batch if trains else samples,
    }
    return await (cluster or LocalCluster()).sandboxes(arguments)


def ledger_form(config: Config) -> str:
    """The form that `ledger.form=auto` stands for: buckets alone where the advantages are not
    affine in the reward, else buckets that may collapse to the affine form."""
    affine = ESTIMATORS[config.objective.estimator].affine
    return "bucket" if config.ledger.form == "auto" and not affine else config.ledger.form


def learner_options(config: Config, policy: Path, weights: Path) -> dict[str, Any]:
    """The constructor's arguments of harness.learner.torch_learner:TorchLearner."""
    learner, ledger = config.learner, config.ledger
    return {
        "policy": str(policy),
        "optimizer": {
            "learning_rate": config.schedule.learning_rate,
            "beta1": learner.beta1,
            "beta2": learner.beta2,
            "weight_decay": learner.weight_decay,
            "gradient_clip": learner.gradient_clip,
        },
        "ledger": ledger.target,
        "ledger_options": {
            "form": ledger_form(config),
            "dtype": ledger.dtype,
            "bucket_cap": ledger.bucket_cap or config.rollout.group_size,
            "storage": ledger.storage,
        },
        "ledger_plan": ledger_plan(config),
        "pass_bytes": pass_bytes(config, policy),
        "publish_folder": str(weights),
        "dtype": learner.dtype,
        "checkpointing": learner.gradient_checkpointing,
        "activations": learner.activations,
        "logits_tokens": learner.logits_tokens,
        "temperature": config.rollout.temperature,
        "objective": offpolicy.effective(config),
        "turns": turn_options(config),
        "adapters": lora.adapters(config.policy.lora, config.seed),
        "placement": _placement(config),
    }


def _placement(config: Config) -> Placement:
    learner = config.learner
    if charged.asked(config):
        return replace(charged.PLACEMENT, packed=learner.packing == "packed")
    return Placement(
        learner.ranks,
        learner.parallel,
        config.ledger.sharded,
        device=learner.device,
        chunk_tokens=config.schedule.chunk_tokens if learner.ranks > 1 else None,
        packed=learner.packing == "packed",
    )


def chunk_tokens(config: Config) -> int:
    """The bound of a chunk of the policy's own tokens."""
    real = charged.PLACEMENT.chunk_tokens if charged.asked(config) else None
    return real or config.schedule.chunk_tokens


def learner_threads(config: Config) -> int:
    """Of all its processes."""
    return charged.THREADS if charged.asked(config) else config.schedule.learner_devices


def turn_options(config: Config) -> TurnOptions | None:
    """None where no turn has a gradient of its own: under another rung, or (schedule.release=auto)
    under settings that need whole trajectories."""
    segments, release = config.segments, config.schedule.release
    if release not in ("turn", "auto") or next(whole_trajectories(config), None):
        return None
    return TurnOptions(
        segments.target,
        segments.way,
        segments.max_live_bytes,
        segments.chunk_tokens,
        required=release == "turn",
    )


def reward_penalty(config: Config, learner: Learner) -> Penalty | None:
    """What training subtracts from a verdict's reward: coefficient x (log policy - log reference)
    of the whole trajectory; None where the objective has no KL in the reward."""
    kl = config.objective.kl
    if kl.place != "reward" or kl.coefficient == 0.0:
        return None

    async def penalty(trajectory: Trajectory) -> float:
        (log_ratio,) = await learner.reference_kl([trajectory])
        return kl.coefficient * log_ratio

    return penalty


def policy_agent(config: Config, parts: Parts, temperature: float) -> PolicyAgent:
    """The language model, at one sampling temperature."""
    return PolicyAgent(parts.engine, parts.chat, config.rollout, temperature)


def make_rollouts(
    config: Config,
    parts: Parts,
    temperature: float,
    penalty: Penalty | None = None,
    scoring: Scoring | None = None,
    kept: Sequence[Trajectory] = (),
) -> Rollouts:
    """The agent loop at one sampling temperature (training and evaluation may differ, and only
    training has a `penalty`, a teacher's `scoring`, or trajectories `kept` of a run that goes on).
    """
    policy = policy_agent(config, parts, temperature)
    environment: Any = parts.environment

    def act(task: Task) -> Agent:
        if config.agent.name == "policy":
            return policy
        return scripted(config.agent.name, parts.environment, task)

    make_agent = act if parts.agents is None else parts.agents(temperature)

    def meet(task: Task, t: Trajectory) -> Task:
        if parts.clock.kind == "virtual":
            return environment.meet(task, t.group, t.index, t.attempt)
        return task

    return Rollouts(
        parts.environment,
        make_agent,
        parts.provider,
        parts.clock,
        config.rollout,
        parts.clock.origin_s,
        penalty,
        parts.clock.semaphore(config.sandbox.verify_parallel or config.sandbox.max_parallel),
        scoring,
        meet,
        kept,
    )
