"""A machine's cores as a hardware preset: what was fitted, and what was assumed."""

from __future__ import annotations

from harness.costs.config import HardwareConfig
from harness.costs.fit_hardware import PEAK_FLOPS_S, CpuCosts
from harness.costs.model import CostModel, Split
from harness.costs.shapes import shape


def preset(costs: CpuCosts, policy: str, label: str, measured: str) -> HardwareConfig:
    """A preset of the fitted costs; `measured` is the source of what was fitted. The rates that are
    assumed are high enough to leave the fitted ones in charge."""
    peak = PEAK_FLOPS_S
    policy_shape = shape(policy)
    config = HardwareConfig(
        label=label, shape=policy, devices=costs.shared.cores, threads=True,
        engine_thread_gain=costs.engine_thread_gain or 0.0,
        learner_thread_gain=costs.learner_thread_gain or 0.0,
        cores=costs.shared.cores, sandbox_cores=costs.shared.sandbox_cores,
        sandboxes_felt=costs.shared.sandboxes_felt, start_gap_s=costs.start_gap_s,
        memory_bytes=8e9, memory_bytes_s=20e9, flops_s=peak, host_bytes_s=20e9,
        host_memory_bytes=8e9, host_memory_bytes_s=20e9, link_bytes_s=10e9, network_bytes_s=10e9,
        node_devices=max(2, 2 * costs.shared.cores), weight_bytes=4, cache_bytes=4,
        engine_tensor_parallel=1, decode_memory_efficiency=1.0,
        decode_compute_efficiency=_efficiency(costs.engine[1], peak),
        decode_step_s=costs.engine[0], decode_sequence_s=0.0,
        prefill_efficiency=_efficiency(costs.engine[2], peak), prefill_s=0.0,
        cache_memory_fraction=0.5, learner_tensor_parallel=1,
        train_efficiency=_efficiency(costs.learner[1], peak), recompute=0.0, padded=True,
        chunk_s=costs.learner[0], capture_s=costs.learner[2], fold_s=costs.fold_s,
        buffer_overlap=0.0, buffer_memory_efficiency=1.0, optimizer_sharded=False,
        collective_efficiency=1.0, step_s=costs.step_s, publish_efficiency=1.0,
        publish_s=costs.publish_s, switch_s=0.0, sources=dict(SOURCES),
    )  # fmt: skip
    # What the model adds by bytes is in what was measured: it is taken off again.
    model = CostModel(config, policy_shape, Split(1, 1))
    config.capture_s = max(0.0, 2 * config.capture_s - model.capture_overhead_s(1))
    config.fold_s = max(0.0, 2 * config.fold_s - model.fold_s(2))
    config.step_s = max(0.0, 2 * config.step_s - model.step_s())
    config.publish_s = max(0.0, 2 * config.publish_s - model.publish_s())
    for key in ("engine_thread_gain", "learner_thread_gain"):
        if getattr(costs, key) is not None:
            config.sources[key] = "MEASURED"
    for key, source in config.sources.items():
        config.sources[key] = source.replace("MEASURED", measured)
    return config


def _efficiency(flop_s: float, peak: float) -> float:
    return min(1.0, 1 / (flop_s * peak)) if flop_s > 0 else 1.0


_FITTED = (
    "sandbox_cores", "sandboxes_felt", "decode_compute_efficiency", "decode_step_s",
    "prefill_efficiency", "train_efficiency", "chunk_s", "capture_s", "fold_s", "step_s",
    "publish_s", "start_gap_s",
)  # fmt: skip
SOURCES = {
    "shape": "the recorded runs' policy",
    "devices": "the recorded runs' machine",
    "threads": "the recorded runs' devices are threads",
    "engine_thread_gain": "assumed: none, on few cores",
    "learner_thread_gain": "assumed: none, on few cores",
    "cores": "the recorded runs' machine",
    **dict.fromkeys(_FITTED, "MEASURED"),
    "memory_bytes": "assumed; no run comes near it",
    "host_memory_bytes": "assumed: the memory is the host's",
    "memory_bytes_s": "assumed: one thread's share of a server's memory",
    "flops_s": "assumed: 2.6 GHz x 32 float32 operations a cycle, two AVX2 units",
    "host_bytes_s": "assumed: the memory is the host's",
    "host_memory_bytes_s": "assumed: the memory is the host's",
    "node_devices": "one machine",
    "link_bytes_s": "assumed: a copy in memory",
    "network_bytes_s": "there is no network",
    "weight_bytes": "float32",
    "cache_bytes": "float32",
    "engine_tensor_parallel": "one process",
    "decode_memory_efficiency": "assumed; compute and steps are what was fitted",
    "decode_sequence_s": "in what a FLOP was fitted to take",
    "prefill_s": "in what a FLOP of reading was fitted to take",
    "cache_memory_fraction": "assumed; no run comes near it",
    "learner_tensor_parallel": "one process",
    "recompute": "harness/learner keeps its activations",
    "padded": "harness/learner pads the rows of a pass",
    "buffer_overlap": "ledgers lie in the same memory",
    "buffer_memory_efficiency": "assumed; what was measured is in capture_s and fold_s",
    "optimizer_sharded": "one rank",
    "collective_efficiency": "one rank",
    "publish_efficiency": "assumed; what was measured is in publish_s",
    "switch_s": "assumed: nothing moves between processes of one machine",
}
