"""The cost model that a configuration asks for."""

from __future__ import annotations

import math

from harness.config import Config
from harness.costs.config import HardwareConfig
from harness.costs.model import CostModel, Split
from harness.costs.shapes import shape
from harness.protocols import UsageError

_RATES = (
    "memory_bytes", "memory_bytes_s", "flops_s", "host_bytes_s", "host_memory_bytes_s",
    "link_bytes_s", "network_bytes_s", "weight_bytes", "cache_bytes",
)  # fmt: skip
_EFFICIENCIES = (
    "decode_memory_efficiency", "decode_compute_efficiency", "prefill_efficiency",
    "train_efficiency", "buffer_memory_efficiency", "collective_efficiency", "publish_efficiency",
    "cache_memory_fraction",
)  # fmt: skip
_AT_LEAST_0 = (
    "decode_step_s", "decode_sequence_s", "prefill_s", "recompute", "chunk_s", "capture_s",
    "fold_s", "step_s", "publish_s", "switch_s", "buffer_overlap", "engine_thread_gain",
    "learner_thread_gain", "host_memory_bytes", "start_gap_s",
    "cores", "sandbox_cores", "sandboxes_felt",
)  # fmt: skip
_AT_MOST_1 = (*_EFFICIENCIES, "buffer_overlap")
_COUNTS = ("devices", "node_devices", "engine_tensor_parallel", "learner_tensor_parallel")


def check_hardware(hardware: HardwareConfig) -> None:
    """Raises UsageError, one line, for constants that are no hardware's."""
    if hardware.label is None:
        raise UsageError(
            "hardware=auto: this machine as it is has no cost model; a virtual run needs one, such "
            "as hardware=8xb200 or hardware=cpu2"
        )
    for keys, bound, holds in (
        ((*_RATES, *_EFFICIENCIES), "above 0", lambda value: 0 < value < math.inf),
        (_AT_LEAST_0, "0 or more", lambda value: 0 <= value < math.inf),
        (_AT_MOST_1, "at most 1", lambda value: value <= 1),
        (_COUNTS, "1 or more", lambda value: value >= 1),
    ):
        for key in keys:
            value = getattr(hardware, key)
            if not holds(value):
                raise UsageError(f"hardware.{key}={value}: must be {bound}")


def cost_model(config: Config) -> CostModel:
    """Raises UsageError where the schedule's split does not fit the hardware."""
    hardware, schedule, ledger = config.hardware, config.schedule, config.ledger
    check_hardware(hardware)
    for who in ("engine", "learner"):
        taken = getattr(schedule, f"{who}_devices")
        tensor = getattr(hardware, f"{who}_tensor_parallel")
        if taken % tensor:
            raise UsageError(
                f"schedule.{who}_devices={taken}: not a multiple of "
                f"hardware.{who}_tensor_parallel={tensor}"
            )
    colocated = schedule.placement == "colocated"
    total = schedule.engine_devices + (0 if colocated else schedule.learner_devices)
    if total > hardware.devices:
        raise UsageError(
            f"schedule.engine_devices={schedule.engine_devices} and schedule.learner_devices="
            f"{schedule.learner_devices}: more than hardware.devices={hardware.devices} of "
            f"{hardware.label}"
        )
    split = Split(
        schedule.engine_devices,
        schedule.learner_devices,
        colocated,
        ledger.dtype,
        ledger.storage,
        ledger.sharded,
        config.learner.ranks,
    )
    model = CostModel(hardware, shape(hardware.shape), split)
    if model.context_capacity_tokens < config.rollout.max_context_tokens:
        raise UsageError(
            f"hardware.engine_tensor_parallel={hardware.engine_tensor_parallel}: beside weights "
            f"a replica holds {model.context_capacity_tokens} tokens of context, fewer than "
            f"rollout.max_context_tokens={config.rollout.max_context_tokens}; take more devices"
        )
    return model


def settle_split(config: Config) -> None:
    """What follows of the hardware and its split: devices that are shared, engine.replicas and
    learner.ranks. Raises UsageError as `cost_model` does, and for other ranks than these."""
    if config.schedule.placement == "colocated":  # they share all that there is
        config.schedule.engine_devices = config.schedule.learner_devices = config.hardware.devices
    costs = cost_model(config)
    if config.learner.ranks not in (1, costs.learner_ranks):
        raise UsageError(
            f"learner.ranks={config.learner.ranks}: {costs.label} has {costs.learner_ranks} for "
            f"schedule.learner_devices={config.schedule.learner_devices}; leave it unset"
        )
    config.learner.ranks, config.engine.replicas = costs.learner_ranks, costs.engine_replicas
