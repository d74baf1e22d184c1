"""The constants of a machine's cores, from recorded runs: least squares over what was measured.

On few cores everything waits for everything: a pass that takes 0.3 s alone takes a second beside
sandboxes at work. What is fitted is therefore the work, and how much of a core a busy sandbox
wants; a duration is the work times the contention (harness.costs.model) while it went on.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from harness.costs.config import HardwareConfig
from harness.costs.model import CostModel, Split
from harness.costs.recording import SANDBOX_WORK, Array, Profile, Recording
from harness.costs.shapes import shape
from harness.protocols import UsageError

BIN_S = 0.25  # of the engine's work: some decode steps long, and shorter than a burst of sandboxes
SANDBOX_CORES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)  # what is tried
PASSES = ("accumulate", "capture")


@dataclass(frozen=True)
class Work:
    """Measured durations of one kind in one run, and what they did: `features_NF` before the
    contention, which `wanted_N` (threads of engine and learner) and `sandboxes_N` make."""

    run: int
    took_s_N: Array
    features_NF: Array
    wanted_N: Array
    sandboxes_N: Array

    def under(self, sandbox_cores: float, cores: int) -> Array:
        """Features times contention: their product with the costs is the duration."""
        wanted = self.wanted_N + sandbox_cores * self.sandboxes_N
        return self.features_NF * np.maximum(1.0, wanted / cores)[:, None]


def engine_work(recording: Recording) -> Work:
    """Over bins of time: decode steps, and FLOPs of tokens made and read. A turn's tokens spread
    evenly over it; a step gives each running turn one."""
    policy, settings = shape(recording.settings.policy), recording.settings
    generate = [(b.start_s, b.end_s) for b in recording.named("generate")]
    end_s = max((end for _, end in generate), default=0.0)
    edges = np.arange(0.0, end_s + BIN_S, BIN_S)
    starts, ends = edges[:-1], edges[1:]
    turns = _turns(recording)
    running = Profile((s, e) for s, e, *_ in turns).mean(starts, ends)
    made, flops = np.zeros(len(starts)), np.zeros(len(starts))
    for start_s, finish_s, tokens, new, context in turns:
        low, high = int(start_s / BIN_S), min(int(finish_s / BIN_S), len(starts) - 1)
        inside = np.minimum(ends[low : high + 1], finish_s) - np.maximum(
            starts[low : high + 1], start_s
        )
        share = inside / max(finish_s - start_s, 1e-9)
        made[low : high + 1] += tokens * share
        flops[low : high + 1] += (
            share * (tokens + new) * (2 * policy.active_parameters + policy.pair_flops * context)
        )
    took_s = Profile(generate).mean(starts, ends) * BIN_S
    features = np.stack([made / np.maximum(running, 1.0), flops], axis=1)
    busy = running > 0.5
    return _work(recording, took_s, features, starts, ends, busy, float(settings.engine_devices), 0)


def learner_work(recording: Recording) -> Work:
    """Over passes: one each, forward FLOPs of the padded rows three times over, one addition to the
    ledger for a capture."""
    policy = shape(recording.settings.policy)
    passes = recording.named(*PASSES)
    rows = []
    for busy in passes:
        padded, count = busy.args["padded"], len(busy.args["trajectories"])
        longest = padded / count
        pairs = count * longest * (longest + 1) / 2
        flops = 3 * (2 * policy.active_parameters * padded + policy.pair_flops * pairs)
        rows.append((1.0, flops, float(busy.name == "capture")))
    features = np.array(rows, dtype=np.float64).reshape(-1, 3)
    starts = np.array([b.start_s for b in passes])
    ends = np.array([b.end_s for b in passes])
    threads = float(recording.settings.learner_devices)
    everything = np.ones(len(passes), dtype=bool)
    return _work(recording, ends - starts, features, starts, ends, everything, 0, threads)


def _work(
    recording: Recording, took_s: Array, features: Array, starts: Array, ends: Array,
    kept: npt.NDArray[np.bool_], engine_threads: float, learner_threads: float,
) -> Work:  # fmt: skip
    """With the contention of others: `engine_threads` or `learner_threads` are its own."""
    settings = recording.settings
    boxes = Profile((b.start_s, b.end_s) for b in recording.named(*SANDBOX_WORK))
    if engine_threads:
        others = Profile((b.start_s, b.end_s) for b in recording.named(*PASSES))
        other_threads = settings.learner_devices
    else:
        others = Profile((b.start_s, b.end_s) for b in recording.named("generate"))
        other_threads = settings.engine_devices
    wanted = engine_threads + learner_threads + other_threads * others.mean(starts, ends)
    sandboxes = boxes.mean(starts, ends)
    return Work(recording.number, took_s[kept], features[kept], wanted[kept], sandboxes[kept])


def _turns(recording: Recording) -> list[tuple[float, float, int, int, float]]:
    """Of every turn: start, end, tokens made, tokens read before them, mean context."""
    found = []
    for life in recording.lives:
        context, new = 0, life.plan.prompt_tokens
        for (start_s, end_s), turn in zip(life.generating_s, life.plan.turns, strict=True):
            context += new
            found.append((start_s, end_s, turn.action_tokens, new, context + turn[0] / 2))
            context += turn.action_tokens
            new = turn.observation_tokens
    return found


@dataclass(frozen=True)
class CpuCosts:
    """What was fitted; seconds, and FLOPs a second of one thread."""

    cores: int
    sandbox_cores: float
    engine: tuple[float, float]  # of a step, of a FLOP
    learner: tuple[float, float, float]  # of a pass, of a FLOP, of an addition to the ledger
    step_s: float
    publish_s: float
    fold_s: float

    def engine_s(self, work: Work) -> float:
        return float((work.under(self.sandbox_cores, self.cores) @ self.engine).sum())

    def learner_s(self, work: Work) -> float:
        return float((work.under(self.sandbox_cores, self.cores) @ self.learner).sum())


def fit(recordings: Sequence[Recording], cores: int) -> CpuCosts:
    """Costs under the sandboxes' share of a core that makes every run's totals come out best. The
    fitted durations of all runs together sum to the measured ones. Raises UsageError where nothing
    was decoded or learnt."""
    engines = [engine_work(r) for r in recordings]
    learners = [learner_work(r) for r in recordings]
    if not sum(len(w.took_s_N) for w in engines) or not sum(len(w.took_s_N) for w in learners):
        raise UsageError("runs: nothing was decoded or nothing learnt; give runs with updates")
    fits = []
    for share in SANDBOX_CORES:
        engine, engine_error = _solve(engines, share, cores)
        learner, learner_error = _solve(learners, share, cores)
        fits.append((engine_error + learner_error, share, engine, learner))
    _, share, engine, learner = min(fits, key=lambda made: made[0])

    def typical(name: str) -> float:
        took = [b.took_s for r in recordings for b in r.named(name)]
        return statistics.median(took) if took else 0.0

    return CpuCosts(
        cores, share, (engine[0], engine[1]), (learner[0], learner[1], learner[2]),
        typical("step"), typical("publish") + typical("exchange"), typical("fold"),
    )  # fmt: skip


def _solve(works: Sequence[Work], share: float, cores: int) -> tuple[list[float], float]:
    """(costs, mean relative error of the runs' totals), by non-negative least squares."""
    features = np.concatenate([w.under(share, cores) for w in works])
    took_s = np.concatenate([w.took_s_N for w in works])
    scale = np.maximum(np.abs(features).max(axis=0), 1e-30)  # FLOPs and passes in one system
    costs = nnls(features / scale, took_s)[0] / scale
    predicted = features @ costs
    if predicted.sum() > 0:
        costs *= took_s.sum() / predicted.sum()
    errors = [
        abs(float((w.under(share, cores) @ costs).sum() / w.took_s_N.sum()) - 1)
        for w in works
        if len(w.took_s_N)
    ]
    return [float(c) for c in costs], statistics.fmean(errors)


def hardware(costs: CpuCosts, policy: str, label: str, measured: str) -> HardwareConfig:
    """A preset of the fitted costs; `measured` is the source of what was fitted. The rates that are
    assumed are high enough to leave the fitted ones in charge."""
    peak = 83.2e9
    policy_shape = shape(policy)
    config = HardwareConfig(
        label=label, shape=policy, devices=costs.cores, threads=True,
        engine_thread_gain=0.0, learner_thread_gain=0.0,
        cores=costs.cores, sandbox_cores=costs.sandbox_cores,
        memory_bytes=8e9, memory_bytes_s=20e9, flops_s=peak, host_bytes_s=20e9,
        host_memory_bytes_s=20e9, node_devices=max(2, 2 * costs.cores), link_bytes_s=10e9,
        network_bytes_s=10e9, weight_bytes=4, cache_bytes=4, engine_tensor_parallel=1,
        decode_memory_efficiency=1.0,
        decode_compute_efficiency=_efficiency(costs.engine[1], peak),
        decode_step_s=costs.engine[0], decode_sequence_s=0.0,
        prefill_efficiency=_efficiency(costs.engine[1], peak), prefill_s=0.0,
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
    for key, source in config.sources.items():
        config.sources[key] = source.replace("MEASURED", measured)
    return config


def _efficiency(flop_s: float, peak: float) -> float:
    return min(1.0, 1 / (flop_s * peak)) if flop_s > 0 else 1.0


_FITTED = (
    "sandbox_cores", "decode_compute_efficiency", "decode_step_s", "prefill_efficiency",
    "train_efficiency", "chunk_s", "capture_s", "fold_s", "step_s", "publish_s",
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
    "prefill_s": "in what a FLOP was fitted to take",
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
