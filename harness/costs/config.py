"""Settings of the hardware that a virtual run is charged for. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HardwareConfig:
    """`label` is on every table row; null detects this machine, for real runs, and has no cost
    model. `shape` is a policy of harness/costs/shapes.yaml, `devices` what engines and learners
    share. Rates are one device's; what is achieved of a rate is an efficiency. `sources` says of
    every number where it is from: 'measured ...', a document, or 'assumed'.
    docs/cost_model.md has the formulas."""

    label: str | None = None
    shape: str = "tiny"
    devices: int = 0
    # Devices are threads of one process: one engine replica, and learner.ranks ranks. A thread more
    # adds its gain, a fraction of the first.
    threads: bool = False
    # Engine, learner and sandboxes share so many cores (0: each has its own); a sandbox at work
    # keeps `sandbox_cores` of one busy, and more than `sandboxes_felt` of them are felt like so
    # many (0: all are felt), because most then wait for one another.
    cores: int = 0
    sandbox_cores: float = 0.0
    sandboxes_felt: int = 0
    start_gap_s: float = 0.0  # from one sandbox's start to the next one's, at the same host
    engine_thread_gain: float = 1.0
    learner_thread_gain: float = 1.0
    # A device.
    memory_bytes: float = 0.0
    memory_bytes_s: float = 0.0
    flops_s: float = 0.0  # dense, at the precision of the weights
    host_bytes_s: float = 0.0  # to and from host memory, one direction
    host_memory_bytes: float = 0.0  # a node's (0: as a device's)
    host_memory_bytes_s: float = 0.0  # of a node's host memory, which its learners share
    node_devices: int = 8
    link_bytes_s: float = 0.0  # to devices of the same node, one direction
    network_bytes_s: float = 0.0  # to other nodes
    weight_bytes: float = 2.0  # per parameter
    cache_bytes: float = 2.0  # per key or value element
    # Engines.
    engine_tensor_parallel: int = 1
    decode_memory_efficiency: float = 1.0
    decode_compute_efficiency: float = 1.0
    decode_step_s: float = 0.0  # of a step, whatever it does: launches, scheduling, sampling
    decode_sequence_s: float = 0.0  # of a step, for each running sequence
    prefill_efficiency: float = 1.0
    prefill_s: float = 0.0  # of one prefill
    cache_memory_fraction: float = 0.9  # of memory, for weights and the keys and values
    # Learners.
    learner_tensor_parallel: int = 1
    train_efficiency: float = 1.0
    recompute: float = 1.0  # forward passes done again during a backward
    padded: bool = False  # a chunk costs rows x its longest row, not its tokens
    chunk_s: float = 0.0  # of one pass over a chunk
    capture_s: float = 0.0  # of one trajectory's gradient on its way into the ledger
    fold_s: float = 0.0  # of one fold
    buffer_overlap: float = 0.0  # of what ledgers do in host memory, hidden behind passes
    buffer_memory_efficiency: float = 1.0  # of the memory that gradients and ledgers move through
    optimizer_sharded: bool = True  # its state, over the learner's ranks
    collective_efficiency: float = 1.0
    step_s: float = 0.0  # of one optimizer step
    # Weights.
    publish_efficiency: float = 1.0  # of the link (of the network, between nodes)
    publish_s: float = 0.0  # of one publication
    switch_s: float = 0.0  # colocated: engine and learner hand the devices over
    sources: dict[str, str] = field(default_factory=dict)
