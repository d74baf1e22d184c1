"""How many devices a run has, and whether engine and learner share them (threads on a CPU)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config import Config
from harness.protocols import UsageError

TAKES_TURNS = ("sync",)  # schedules whose engine and learner never work at the same time


@dataclass(frozen=True)
class Devices:
    """`engine` and `learner` count each one's devices, `teacher` those of a teacher that runs here.
    Under placement=colocated engine and learner are on the same devices, so that `total` has them
    once: budget.kind=device_s counts `total`."""

    placement: str
    engine: int
    learner: int
    total: int
    teacher: int = 0


def devices(config: Config) -> Devices:
    """The run's devices, for budget, manifest and pinning alike."""
    schedule = config.schedule
    engine, learner = schedule.engine_devices, schedule.learner_devices
    here = config.objective.name == "opd" and config.teacher.name == "torch"
    teacher = config.teacher.devices if here else 0
    total = teacher + (engine if schedule.placement == "colocated" else engine + learner)
    return Devices(schedule.placement, engine, learner, total, teacher)


def check(config: Config) -> None:
    """Raises UsageError, one line, for a placement that this run cannot have."""
    schedule = config.schedule
    if schedule.placement != "colocated":
        return
    if schedule.name not in TAKES_TURNS:
        raise UsageError(
            f"schedule.placement=colocated: under schedule={schedule.name} engine and learner work "
            "at the same time by design, so they cannot take turns on the same devices; take "
            "schedule=sync, or schedule.placement=disaggregated"
        )
    if schedule.engine_devices != schedule.learner_devices:
        raise UsageError(
            f"schedule.placement=colocated: schedule.engine_devices={schedule.engine_devices} and "
            f"schedule.learner_devices={schedule.learner_devices} are the same devices; give both "
            "the run's total"
        )
    if config.learner.device == "cuda" and config.engine.name == "torch":
        raise UsageError(
            "schedule.placement=colocated: engine=torch decodes on the CPU and learner.device=cuda "
            "trains on GPUs, so they share no device; take schedule.placement=disaggregated"
        )
    if config.engine.name == "vllm" and "cuda" in (config.engine.device, config.learner.device):
        raise UsageError(
            f"schedule.placement=colocated: engine=vllm does not hand the memory of a GPU over "
            f"(engine.device={config.engine.device}, learner.device={config.learner.device}); take "
            "schedule.placement=disaggregated"
        )
    kl = config.objective.kl
    if kl.place == "reward" and kl.coefficient > 0:
        raise UsageError(
            "schedule.placement=colocated: objective.kl.place=reward lets the learner score "
            "trajectories while the engine decodes others; take objective.kl.place=loss, or "
            "schedule.placement=disaggregated"
        )
