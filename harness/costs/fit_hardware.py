"""The constants of a machine's cores, from recorded runs: least squares over what was measured.

On few cores everything waits for everything: a pass that takes 0.3 s alone takes a second beside
sandboxes at work. What is fitted is therefore the work, and how much of a core a busy sandbox
wants; a duration is the work times the contention (harness.costs.model) while it went on.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear

from harness.costs.recording import SANDBOX_WORK, Array, Profile, Recording
from harness.costs.shapes import shape
from harness.protocols import UsageError

MOMENTS = 16  # of each measured duration, at which it is asked who else was at work
TOGETHER_S = 0.1  # a start that comes later after the one before was not asked for with it
BIN_S = 0.25  # of the engine's work: some decode steps long, and shorter than a burst of sandboxes
PEAK_FLOPS_S = 83.2e9  # of one thread; nothing is fitted to be quicker
# What is tried.
SANDBOX_CORES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.3, 1.7, 2.2, 2.8, 3.5)
SANDBOXES_FELT = (3, 5, 8, 12, 20, 0)
# Where runs differ in threads. Above 1: a thread that waits for its core holds up all, two are held
# up less by sandboxes than one.
THREAD_GAINS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
# Features of the engine: steps, FLOPs of tokens made and of tokens read. Many are read at a time,
# and one of each session made: a FLOP of these takes several times as long.
# Of the learner: passes, FLOPs, additions to the ledger.
ENGINE_FLOPS, LEARNER_FLOPS = (1, 2), (1,)
PASSES = ("accumulate", "capture")


@dataclass(frozen=True)
class Shared:
    """What CostModel.contention knows of the cores."""

    cores: int
    sandbox_cores: float
    sandboxes_felt: int  # 0: all


@dataclass(frozen=True)
class Work:
    """Measured durations of one kind in one run, and what they did: `features_NF` before the
    contention, which `wanted_NM` (threads of engine and learner) and `sandboxes_NM` make at moments
    of each. `threads` do it together: one more is worth a `gain` of the first, for the features
    `flops`; a step and a pass are begun by one."""

    run: int
    threads: float
    took_s_N: Array
    flops: tuple[int, ...]
    features_NF: Array
    wanted_NM: Array
    sandboxes_NM: Array

    def under(self, shared: Shared, gain: float) -> Array:
        """Features times contention: their product with the costs is the duration. Work goes on at
        the speed that each moment leaves it, so that its contention is the harmonic mean of
        theirs."""
        sandboxes = np.minimum(self.sandboxes_NM, shared.sandboxes_felt or np.inf)
        wanted = self.wanted_NM + shared.sandbox_cores * sandboxes
        contention_N = 1 / np.mean(1 / np.maximum(1.0, wanted / shared.cores), axis=1)
        alone = self.features_NF.copy()
        alone[:, self.flops] /= 1 + gain * (self.threads - 1)
        return alone * contention_N[:, None]


def engine_work(recording: Recording) -> Work:
    """Over bins of time: decode steps, FLOPs of tokens made and of tokens read. A turn's
    tokens spread evenly over it; a step gives each running turn one."""
    policy, settings = shape(recording.settings.policy), recording.settings
    generate = [(b.start_s, b.end_s) for b in recording.named("generate")]
    end_s = max((end for _, end in generate), default=0.0)
    edges = np.arange(0.0, end_s + BIN_S, BIN_S)
    starts, ends = edges[:-1], edges[1:]
    turns = _turns(recording)
    running = Profile((s, e) for s, e, *_ in turns).mean(starts, ends)
    made, decoded, read = (np.zeros(len(starts)) for _ in range(3))
    for start_s, finish_s, tokens, new, context in turns:
        low, high = int(start_s / BIN_S), min(int(finish_s / BIN_S), len(starts) - 1)
        inside = np.minimum(ends[low : high + 1], finish_s) - np.maximum(
            starts[low : high + 1], start_s
        )
        share = inside / max(finish_s - start_s, 1e-9)
        token_flops = 2 * policy.active_parameters + policy.pair_flops * context
        made[low : high + 1] += tokens * share
        decoded[low : high + 1] += tokens * share * token_flops
        read[low : high + 1] += new * share * token_flops
    took_s = Profile(generate).mean(starts, ends) * BIN_S
    together = running * BIN_S / np.maximum(took_s, 1e-9)  # while there was any
    features = np.stack([made / np.maximum(together, 1.0), decoded, read], axis=1)
    busy = took_s > 0
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
    places = (np.arange(MOMENTS) + 0.5) / MOMENTS
    moments_NM = starts[kept, None] + (ends - starts)[kept, None] * places
    wanted_NM = engine_threads + learner_threads + other_threads * others.at(moments_NM)
    own = engine_threads or learner_threads
    flops = ENGINE_FLOPS if engine_threads else LEARNER_FLOPS
    return Work(
        recording.number, own, took_s[kept], flops, features[kept], wanted_NM, boxes.at(moments_NM)
    )


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

    shared: Shared
    engine: tuple[float, float, float]  # of a step, of a FLOP of decoding, of one of reading
    engine_thread_gain: float | None  # None: no two runs differ in threads
    learner: tuple[float, float, float]  # of a pass, of a FLOP, of an addition to the ledger
    learner_thread_gain: float | None
    step_s: float
    publish_s: float
    fold_s: float
    start_gap_s: float
    error: float  # mean relative ones of the runs' totals, the engine's plus the learner's

    def engine_s(self, work: Work) -> float:
        return float((work.under(self.shared, self.engine_thread_gain or 0.0) @ self.engine).sum())

    def learner_s(self, work: Work) -> float:
        gain = self.learner_thread_gain or 0.0
        return float((work.under(self.shared, gain) @ self.learner).sum())


def fits(recordings: Sequence[Recording], cores: int) -> list[CpuCosts]:
    """Costs under each of SANDBOX_CORES and SANDBOXES_FELT, and what a second thread is worth;
    first those that make every run's totals come out best. The fitted durations of all runs
    together sum to the measured ones. Raises UsageError where nothing was decoded or learnt."""
    engines = [engine_work(r) for r in recordings]
    learners = [learner_work(r) for r in recordings]
    if not sum(len(w.took_s_N) for w in engines) or not sum(len(w.took_s_N) for w in learners):
        raise UsageError("runs: nothing was decoded or nothing learnt; give runs with updates")
    found = []
    for share, felt in itertools.product(SANDBOX_CORES, SANDBOXES_FELT):
        shared = Shared(cores, share, felt)
        engine, learner = _solve(engines, shared), _solve(learners, shared)
        found.append((engine.error + learner.error, shared, engine, learner))
    found.sort(key=lambda made: made[0])

    def typical(name: str) -> float:
        took = [b.took_s for r in recordings for b in r.named(name)]
        return statistics.median(took) if took else 0.0

    others = (
        typical("step"), typical("publish") + typical("exchange"), typical("fold"),
        _start_gap_s(recordings),
    )  # fmt: skip
    return [
        CpuCosts(
            shared, (engine.costs[0], engine.costs[1], engine.costs[2]), engine.gain,
            (learner.costs[0], learner.costs[1], learner.costs[2]), learner.gain, *others, error,
        )
        for error, shared, engine, learner in found
    ]  # fmt: skip


def _start_gap_s(recordings: Sequence[Recording]) -> float:
    """The mean time between two starts that were asked for together."""
    starts = [np.sort([life.started_s for life in r.lives]) for r in recordings]
    gaps_s = np.concatenate([np.diff(s) for s in starts])
    together = gaps_s[gaps_s < TOGETHER_S]
    return float(together.mean()) if len(together) else 0.0


@dataclass(frozen=True)
class Solution:
    """`error` is the mean relative one of the runs' totals."""

    error: float
    costs: list[float]
    gain: float | None


def _solve(works: Sequence[Work], shared: Shared) -> Solution:
    """The best thread gain's costs, by least squares; no FLOP takes less than PEAK_FLOPS_S says."""
    if len({work.threads for work in works}) == 1:
        costs, error = _costs(works, shared, 0.0)
        return Solution(error, costs, None)
    found = [(gain, *_costs(works, shared, gain)) for gain in THREAD_GAINS]
    gain, costs, error = min(found, key=lambda made: made[2])
    return Solution(error, costs, gain)


def _costs(works: Sequence[Work], shared: Shared, gain: float) -> tuple[list[float], float]:
    features = np.concatenate([w.under(shared, gain) for w in works])
    took_s = np.concatenate([w.took_s_N for w in works])
    scale = np.maximum(np.abs(features).max(axis=0), 1e-30)  # FLOPs and passes in one system
    least = np.zeros(len(scale))
    least[list(works[0].flops)] = 1 / PEAK_FLOPS_S
    costs = lsq_linear(features / scale, took_s, (least * scale, np.inf)).x / scale
    predicted = features @ costs
    if predicted.sum() > 0:
        costs *= took_s.sum() / predicted.sum()
    errors = [
        abs(float((w.under(shared, gain) @ costs).sum() / w.took_s_N.sum()) - 1)
        for w in works
        if len(w.took_s_N)
    ]
    return [float(c) for c in costs], statistics.fmean(errors)
