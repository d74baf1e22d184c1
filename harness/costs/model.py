"""Seconds of every verb of engine and learner, from a policy's shape and a device's rates.

Decoding is a roofline of memory and compute; passes go by their FLOPs; gradients and weights by
their bytes. Every formula is in docs/cost_model.md, with the source of each constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.costs.config import HardwareConfig
from harness.costs.shapes import Shape

GRADIENT_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}  # of ledger.dtype, an element
STATE_BYTES = 30.0  # of AdamW, a parameter: master, two moments read and written, gradient, weight


@dataclass(frozen=True)
class Split:
    """How a run uses the hardware: devices each, and where its ledgers lie."""

    engine_devices: int
    learner_devices: int
    colocated: bool = False
    ledger_dtype: str = "float32"
    ledger_storage: str = "device"
    ledger_sharded: bool = False
    ranks: int = 1  # of a learner whose devices are threads


def _together(devices: int, gain: float) -> float:
    """How much faster so many threads are than one."""
    return 1 + (devices - 1) * gain


class CostModel:
    """Seconds on one kind of hardware. An engine replica is `engine_tensor_parallel` devices, a
    learner rank `learner_tensor_parallel`; `assumed` names the constants without a source."""

    def __init__(self, hardware: HardwareConfig, shape: Shape, split: Split) -> None:
        self._hardware, self._shape, self._split = hardware, shape, split
        self.engine_replicas = max(1, split.engine_devices // hardware.engine_tensor_parallel)
        self.learner_ranks = max(1, split.learner_devices // hardware.learner_tensor_parallel)
        tensor, learner = hardware.engine_tensor_parallel, hardware.learner_tensor_parallel
        if hardware.threads:
            self.engine_replicas, self.learner_ranks = 1, split.ranks
            tensor = _together(split.engine_devices, hardware.engine_thread_gain)
            learner = _together(split.learner_devices // split.ranks, hardware.learner_thread_gain)
        self.label = f"{hardware.label}, {shape.name}"
        self.assumed = assumed(hardware, shape)
        self._weight_bytes = hardware.weight_bytes * shape.parameters
        self._pair_flops = shape.pair_flops
        self._steps: dict[int, tuple[float, float, float, float, float]] = {}
        self._cache_bytes = hardware.cache_bytes * shape.cache_elements
        self._read_s = 1 / (tensor * hardware.memory_bytes_s * hardware.decode_memory_efficiency)
        self._decode_s = 1 / (tensor * hardware.flops_s * hardware.decode_compute_efficiency)
        self._prefill_s = 1 / (tensor * hardware.flops_s * hardware.prefill_efficiency)
        self._train_s = 1 / (learner * hardware.flops_s * hardware.train_efficiency)
        memory = hardware.engine_tensor_parallel * hardware.memory_bytes
        free = hardware.cache_memory_fraction * memory - self._weight_bytes
        # Total context whose keys and values one engine replica holds.
        self.context_capacity_tokens = max(0, int(free / self._cache_bytes))

    def decode_step_s(self, running: int, context_tokens: float) -> float:
        """One token for each of `running` sequences with `context_tokens` of context in all."""
        if running == 0:
            return 0.0
        weights, flops, step_s, sequences_s, exchange_s = self._step_of(running)
        moved = weights + self._cache_bytes * context_tokens
        flops += self._pair_flops * context_tokens
        busy_s = max(moved * self._read_s, flops * self._decode_s)
        return busy_s + step_s + sequences_s + exchange_s

    def _step_of(self, running: int) -> tuple[float, float, float, float, float]:
        """What a decode step costs whatever its context: bytes of weights, FLOPs, and seconds of
        the step, of its sequences and of the exchange. A long run asks millions of times."""
        known = self._steps.get(running)
        if known is None:
            hardware, shape = self._hardware, self._shape
            known = self._steps[running] = (
                hardware.weight_bytes * shape.weights_read(running),
                2 * shape.active_parameters * running,
                hardware.decode_step_s,
                hardware.decode_sequence_s * running,
                self._exchange_s(running),
            )
        return known

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float:
        """`new_tokens` behind a context whose keys and values are there."""
        if new_tokens == 0:
            return 0.0
        shape = self._shape
        pairs = new_tokens * (context_tokens + (new_tokens + 1) / 2)
        flops = 2 * shape.active_parameters * new_tokens + shape.pair_flops * pairs
        moved = self._hardware.weight_bytes * shape.weights_read(new_tokens)
        moved += self._cache_bytes * context_tokens
        busy_s = max(flops * self._prefill_s, moved * self._read_s)
        return busy_s + self._hardware.prefill_s + self._exchange_s(new_tokens)

    def backward_s(self, lengths: Sequence[int]) -> float:
        """Forward and backward of one chunk on one learner rank: a backward is two forwards, and
        what is not kept is computed again."""
        return self._pass_s(lengths, 3 + self._hardware.recompute)

    def forward_s(self, lengths: Sequence[int]) -> float:
        """Log-probabilities of one chunk on one learner rank."""
        return self._pass_s(lengths, 1)

    def fold_s(self, buffers: int) -> float:
        """Add so many buffers of a closed group to the update's total, on every rank at once."""
        moved = (buffers + 2) * self._buffer_bytes()  # the total is read and written
        return self._hardware.fold_s + self._moved_s(moved, leaves=0.0)

    def capture_overhead_s(self, trajectories: int) -> float:
        """What streaming adds to the passes over so many trajectories: each one's gradient is read
        and added to a buffer, which is read and written. Where trajectories of one group and reward
        share a pass, they are one."""
        size = self._buffer_bytes()
        return trajectories * (self._hardware.capture_s + self._moved_s(3 * size, leaves=size))

    def step_s(self) -> float:
        """Gradients over all ranks, then AdamW."""
        hardware, ranks = self._hardware, self.learner_ranks
        shards = ranks if hardware.optimizer_sharded else 1
        state_s = STATE_BYTES * self._shape.parameters / shards / self._memory_s()
        exchanged = 2 * (ranks - 1) / ranks * self.gradient_bytes()
        rate = self._between_bytes_s(self._split.learner_devices)
        rate *= hardware.collective_efficiency * hardware.learner_tensor_parallel
        return hardware.step_s + state_s + exchanged / rate

    def publish_s(self) -> float:
        """The weights, from the learner to every engine replica at once; each of a replica's
        devices takes its part."""
        hardware, split = self._hardware, self._split
        devices = split.learner_devices + (0 if split.colocated else split.engine_devices)
        rate = self._between_bytes_s(devices) * hardware.publish_efficiency
        return hardware.publish_s + self._weight_bytes / hardware.engine_tensor_parallel / rate

    @property
    def shares_cores(self) -> bool:
        """Whether engine, learner and sandboxes slow one another down."""
        return self._hardware.cores > 0

    def contention(self, engine_threads: float, learner_threads: float, sandboxes: float) -> float:
        """What a step or pass takes longer than alone, at least 1, while so many threads of engine
        and learner (its own included) and sandboxes are busy: cores are shared fairly."""
        if not self._hardware.cores:
            return 1.0
        if self._hardware.sandboxes_felt:
            sandboxes = min(sandboxes, self._hardware.sandboxes_felt)
        wanted = engine_threads + learner_threads + self._hardware.sandbox_cores * sandboxes
        return max(1.0, wanted / self._hardware.cores)

    def switch_s(self) -> float:
        """Engine and learner hand shared devices over, once."""
        return self._hardware.switch_s

    @property
    def recomputes(self) -> bool:
        """Whether a backward pass runs the forward pass again."""
        return self._hardware.recompute > 0

    @property
    def context_token_bytes(self) -> float:
        """Of one token's keys and values, as a learner rank's device has them."""
        return self._cache_bytes / self._hardware.learner_tensor_parallel

    def gradient_bytes(self) -> int:
        """Of one buffer of the whole policy."""
        return int(GRADIENT_BYTES[self._split.ledger_dtype] * self._shape.parameters)

    def _pass_s(self, lengths: Sequence[int], forwards: float) -> float:
        if not lengths:
            return 0.0
        if self._hardware.padded:
            lengths = [max(lengths)] * len(lengths)
        pairs = sum(n * (n + 1) / 2 for n in lengths)
        flops = 2 * self._shape.active_parameters * sum(lengths) + self._shape.pair_flops * pairs
        return self._hardware.chunk_s + forwards * flops * self._train_s

    def _exchange_s(self, tokens: int) -> float:
        """Two all-reduces of a layer's activations over a replica's devices."""
        tensor, shape = self._hardware.engine_tensor_parallel, self._shape
        if tensor == 1:
            return 0.0
        moved = 2 * shape.all_layers * tokens * shape.hidden * self._hardware.weight_bytes
        moved *= 2 * (tensor - 1) / tensor
        return moved / (self._hardware.link_bytes_s * self._hardware.collective_efficiency)

    def _buffer_bytes(self) -> float:
        shards = self.learner_ranks if self._split.ledger_sharded else 1
        return self.gradient_bytes() / shards

    def _moved_s(self, moved: float, leaves: float) -> float:
        """Bytes `moved` where the ledger lies, `leaves` of them from the device to there. Host
        memory is shared by a node's ranks, and works while the device goes on: what of it is hidden
        is `buffer_overlap`."""
        hardware = self._hardware
        if self._split.ledger_storage == "device":
            return moved / self._memory_s()
        learners = min(self._split.learner_devices, hardware.node_devices)
        share = hardware.host_memory_bytes_s / learners * hardware.learner_tensor_parallel
        busy_s = moved / (share * hardware.buffer_memory_efficiency)
        link = hardware.host_bytes_s * hardware.learner_tensor_parallel
        link_s = leaves / (link * hardware.collective_efficiency)
        return max(busy_s, link_s) * (1 - hardware.buffer_overlap)

    def _memory_s(self) -> float:
        """Bytes a second of all memories of a rank's devices."""
        hardware = self._hardware
        rate = hardware.memory_bytes_s * hardware.learner_tensor_parallel
        return rate * hardware.buffer_memory_efficiency

    def _between_bytes_s(self, devices: int) -> float:
        """Between so many devices: their node's link, or the network where they are more."""
        inside = devices <= self._hardware.node_devices
        return self._hardware.link_bytes_s if inside else self._hardware.network_bytes_s


def assumed(hardware: HardwareConfig, shape: Shape) -> tuple[str, ...]:
    """The constants whose source says that there is none, as dotted names."""
    pairs = [("hardware", hardware.sources), (f"shape.{shape.name}", shape.sources or {})]
    return tuple(
        f"{where}.{key}"
        for where, sources in pairs
        for key, source in sorted(sources.items())
        if "assumed" in source
    )
