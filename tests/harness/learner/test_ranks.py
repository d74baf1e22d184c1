"""Several learner processes make the update that one makes (math.md sections 2, 3 and 6)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from baselines.sync import Sync
from harness.config import Config
from harness.learner.client import scored
from harness.parity import GRADIENT_FACTOR
from harness.protocols import FoldSpec, Group
from thundersync.check import FLOAT64_LIMIT, relative_error
from thundersync.recorded import InlineLearner, RecordedBatch, permuted_packing, play
from thundersync.stream import Stream
from thundersync.synthetic import arrival, synthetic_groups

LAYOUTS = ["ddp", "sharded", "fsdp"]
REWARDS = (0.0, 1.0, 0.25)
RANKS = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return synthetic_groups(1, 128, REWARDS)


@pytest.fixture(scope="module")
def references(one_rank, make_config, groups):
    """dtype -> the synchronous update of one rank, and how far another may be from it."""
    found = {}
    for dtype in ("float32", "float64"):
        config = make_config(dtype=dtype)
        learner = one_rank(config)
        in_order = RecordedBatch(groups, arrival(groups, 0), burst=3)
        update = play(Sync(config), learner, config, [in_order]).directions[0]
        limit = FLOAT64_LIMIT
        if dtype == "float32":
            limit = GRADIENT_FACTOR * max(
                relative_error(
                    play(
                        Sync(config), learner, config,
                        [RecordedBatch(groups, arrival(groups, seed), burst=3)],
                        permuted_packing(seed),
                    ).directions[0],
                    update,
                )
                for seed in range(20)
            )  # fmt: skip
            assert limit > 0
        found[dtype] = update, limit
    return found


def batches(groups: list[Group]) -> list[RecordedBatch]:
    """In bursts and one by one, with late rewards and trajectories that are lost, at once or when
    submit has captured them, and tried again."""
    return [
        RecordedBatch(groups, arrival(groups, 1), burst=4),
        RecordedBatch(
            groups, arrival(groups, 7), burst=2, reward_delay=5, retried={"1-1": 0, "2-4": 2}
        ),
        RecordedBatch(
            groups, arrival(groups, 3), 99, reward_delay=24, retried={"1-0": 3, "3-5": 0}
        ),
    ]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_the_update_is_that_of_one_rank(
    fleet, make_config, references, groups, ranks, layout, dtype
):
    reference, limit = references[dtype]
    learner = fleet(make_config(ranks, layout, dtype))
    made = learner.play(Sync(learner.config), batches(groups)[:1])
    for release in ("group", "reward", "submit"):
        learner.config.schedule.release = release
        learner.client.discarded.clear()
        made += learner.play(Stream(learner.config), batches(groups))
        late = {"2-4-lost", "1-0-lost"} if release == "submit" else set()
        assert set(learner.client.discarded) & {"2-4-lost", "1-0-lost"} == late
    assert len(made) == 10
    for direction in made:
        assert relative_error(direction, reference) <= limit


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_without_a_trajectory_takes_part(fleet, make_config, references, groups, layout):
    """One trajectory at a time: the second rank never has one."""
    reference, limit = references["float64"]
    learner = fleet(make_config(2, layout, "float64"))
    batch = RecordedBatch(groups, arrival(groups, 5), burst=1)
    (direction,) = learner.play(Stream(learner.config), [batch])
    assert relative_error(direction, reference) <= limit
    alone = Group(0, "t", "easy", synthetic_groups(4, 128, REWARDS)[1].trajectories[:1])
    learner.wait(learner.client.accumulate(alone.trajectories, [0.5]))
    learner.wait(learner.client.step(1.0))
    intervals = learner.wait(learner.client.drain_intervals())
    busy = {(i.resource, i.name) for i in intervals}
    assert {("learner/0", "accumulate"), ("learner/0", "step"), ("learner/1", "step")} <= busy
    assert ("learner/1", "accumulate") not in busy


@pytest.mark.parametrize("layout", LAYOUTS)
def test_captures_of_every_rank_are_discarded_committed_and_folded(
    fleet, make_config, one_rank, groups, layout
):
    """Verb by verb: pending captures on both ranks, two thrown away and made again."""
    rows = groups[1].trajectories
    rewards = {t.trajectory_id: float(t.reward or 0.0) for t in rows}
    # Affine in the reward: at a third distinct one the ledger collapses to that form.
    spec = FoldSpec(1, {k: (r, 2.0 * r - 0.7) for k, r in rewards.items()})
    pending = [replace(t, reward=None) for t in rows]
    learner = fleet(make_config(2, layout, "float64"))
    client, ends = learner.client, [pending[0], pending[-1]]

    async def verbs() -> None:
        await client.capture(pending)
        await client.discard([t.trajectory_id for t in ends])
        await client.capture(ends)
        for trajectory_id, reward in rewards.items():
            await client.commit(trajectory_id, reward)
        await client.fold(spec)
        await client.capture(groups[2].trajectories)
        await client.drop(2)  # the step refuses to leave anything behind
        await client.step(3.0)

    learner.wait(verbs())
    alone = one_rank(make_config(1, "ddp", "float64"))
    alone.accumulate([scored(t) for t in rows], [a for _, a in spec.coefficients.values()])
    expected = torch.cat([t.flatten() for t in alone.update_direction(3.0)])
    assert relative_error(client.directions[-1], expected) <= FLOAT64_LIMIT


def test_each_rank_reports_its_own_passes(fleet, make_config, groups):
    learner = fleet(make_config(2))
    run = [RecordedBatch(groups, arrival(groups, 0), burst=3)]
    learner.client.drain_intervals, kept = (lambda: _nothing()), learner.client.drain_intervals
    learner.play(Sync(learner.config), run)
    learner.client.drain_intervals = kept
    intervals = learner.wait(learner.client.drain_intervals())
    passes = [i for i in intervals if i.name == "accumulate"]
    assert {i.resource for i in passes} == {"learner/0", "learner/1"}
    seen = [t for i in passes for t in i.args["trajectories"]]
    assert len(seen) == len(set(seen)) == 18  # of 24: the degenerate group has no gradient
    tokens = {r: sum(i.args["tokens"] for i in passes if i.resource == r) for r in _NAMES}
    assert min(tokens.values()) > 0.35 * sum(tokens.values())


_NAMES = ("learner/0", "learner/1")


async def _nothing() -> list[object]:
    return []


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("layout", ["sharded", "fsdp"])
def test_ledger_bytes_of_a_rank_fall_with_the_ranks(
    fleet, make_config, one_rank, groups, layout, ranks
):
    """All rewards come last: every trajectory is pending, each in one buffer."""

    def batch() -> RecordedBatch:
        return RecordedBatch(groups, arrival(groups, 0), burst=1, reward_delay=24)

    config = make_config()
    config.schedule.release = "submit"
    alone = play(Stream(config), one_rank(config), config, [batch()]).stats[0]
    learner = fleet(make_config(ranks, layout))
    learner.config.schedule.release = "submit"
    learner.play(Stream(learner.config), [batch()])
    spread = learner.client.stats[-1]
    assert spread.ledger_buffers_peak == alone.ledger_buffers_peak == 24
    share = alone.ledger_bytes_peak / ranks
    assert share <= spread.ledger_bytes_peak <= 1.03 * share  # padding: rows, or a few elements
    if layout == "sharded":
        elements = alone.ledger_bytes_peak // 24 // 4
        assert spread.ledger_bytes_peak == 24 * 4 * math.ceil(elements / ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_stay_one_and_the_same(fleet, make_config, one_rank, groups, layout):
    """Three updates with a clipped gradient: bit-identical over ranks, and those of one rank."""
    recordings = [synthetic_groups(seed, 128, REWARDS) for seed in range(3)]

    def run() -> list[RecordedBatch]:
        return [RecordedBatch(g, arrival(g, 9), burst=3) for g in recordings]

    config = make_config(2, layout, "float64")
    config.schedule.learning_rate, config.learner.gradient_clip = 3e-4, 0.1
    learner = fleet(config)
    learner.play(Stream(config), run())
    assert len(set(learner.ask("digest"))) == 1
    path, version = learner.wait(learner.client.publish())
    assert version == 3
    published = load_file(path)

    config = make_config(1, "ddp", "float64")
    config.schedule.learning_rate, config.learner.gradient_clip = 3e-4, 0.1
    alone = one_rank(config)
    start = {n: p.detach().clone() for n, p in alone.model.named_parameters()}
    stats = play(Stream(config), alone, config, run()).stats
    assert [s.gradient_norm for s in learner.client.stats[-3:]] == pytest.approx(
        [s.gradient_norm for s in stats], rel=1e-12
    )
    assert all(s.clipped for s in learner.client.stats[-3:])
    end = dict(alone.model.named_parameters())
    assert set(published) == set(end)

    def length(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
        return float(torch.cat([(a[n] - b[n]).flatten() for n in end]).detach().norm())

    assert length(end, start) > 0
    assert length(published, end) <= 1e-6 * length(end, start)


def test_an_update_without_a_gradient_is_no_step(fleet, make_config, groups):
    degenerate = synthetic_groups(2, 128, (0.0,))
    for layout in LAYOUTS:
        config = make_config(2, layout)
        config.schedule.learning_rate = 3e-4
        learner = fleet(config)
        before = learner.ask("digest")
        learner.play(Sync(config), [RecordedBatch(degenerate, arrival(degenerate, 0), burst=3)])
        assert learner.client.stats[-1].gradient_norm == 0.0
        assert learner.ask("digest") == before
        learner.play(Sync(config), [RecordedBatch(groups, arrival(groups, 0), burst=3)])
        assert learner.client.stats[-1].gradient_norm > 0.0
        assert learner.ask("digest") != before


@pytest.mark.parametrize("release", ["reward", "submit"])
def test_collectives_of_an_update(fleet, make_config, groups, release):
    """ddp: nothing before the step, one all-reduce in it. Sharded ledgers: one reduction of what
    was accumulated and one gather, in the step."""
    for layout in ("ddp", "sharded"):
        learner = fleet(make_config(2, layout))
        learner.config.schedule.release = release
        learner.ask("collectives")  # forget what another test left
        learner.play(Stream(learner.config), [RecordedBatch(groups, arrival(groups, 7), burst=2)])
        before, stepping = learner.client.before[-1], learner.client.stepping[-1]
        if layout == "ddp":
            assert before == [{}, {}]
            assert stepping == [{"all_reduce": 1}] * 2
        else:
            assert set(before[0]) == {"all_to_all"}
            assert stepping == [{"reduce_scatter_single": 1, "all_gather_single": 1}] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reward_independent_terms_and_adapters(fleet, make_config, one_rank, groups, layout):
    """Both together: a second buffer per capture, and frozen weights."""

    def configured(*arguments: object) -> Config:
        config = make_config(*arguments)
        config.objective.entropy.coefficient = 0.01
        config.objective.kl.coefficient, config.objective.kl.estimator = 0.1, "k3"
        config.policy.lora.rank = 4
        config.schedule.release, config.schedule.learning_rate = "submit", 3e-4
        return config

    def run() -> list[RecordedBatch]:
        return [
            RecordedBatch(groups, arrival(groups, s), burst=2, reward_delay=5) for s in range(3)
        ]

    alone = configured(1, "ddp", "float64")
    service = one_rank(alone)
    inline = play(Stream(alone), service, alone, run())
    learner = fleet(configured(2, layout, "float64"))
    directions = learner.play(Stream(learner.config), run())
    for direction, expected in zip(directions, inline.directions, strict=True):
        assert relative_error(direction, expected) <= 1e-7  # after steps: Adam divides by noise
    assert relative_error(directions[0], inline.directions[0]) <= FLOAT64_LIMIT
    rows = groups[1].trajectories
    expected_kl = InlineLearner(service)
    got = learner.wait(learner.client.reference_kl(rows))
    assert got == pytest.approx(learner.runner.run(expected_kl.reference_kl(rows)), rel=1e-6)
    assert any(got)
    published = load_file(learner.wait(learner.client.publish())[0])
    expected = load_file(service.publish()[0])
    assert set(published) == set(expected)
    for name, weight in published.items():
        assert torch.allclose(weight, expected[name], rtol=0, atol=1e-9), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reference_is_left_behind(fleet, make_config, one_rank, groups, layout):
    """log policy - log reference: 0 before the first step, then what one rank finds; a forward
    without a backward leaves no weights behind that a step would make stale."""

    def configured(*arguments: object) -> Config:
        config = make_config(*arguments)
        config.objective.kl.coefficient, config.objective.kl.place = 0.1, "reward"
        config.schedule.learning_rate = 1e-2
        return config

    rows, found = groups[1].trajectories, {}
    learner = fleet(configured(2, layout, "float64"))
    inline = InlineLearner(one_rank(configured(1, "ddp", "float64")))
    for name, verbs in (("ranks", learner.client), ("one", inline)):
        before = learner.wait(verbs.reference_kl(rows))
        learner.wait(verbs.accumulate(rows, [0.5 - i for i in range(len(rows))]))
        learner.wait(verbs.reference_kl(rows))  # as for a last reward before the step
        learner.wait(verbs.step(10.0))
        found[name] = [before, learner.wait(verbs.reference_kl(rows))]
    assert found["ranks"][0] == pytest.approx([0.0] * len(rows), abs=1e-9)
    assert found["ranks"][1] == pytest.approx(found["one"][1], rel=1e-6)
    assert min(map(abs, found["one"][1])) > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_parity_check_over_ranks(fleet, make_config, one_rank, groups, layout):
    """The check compares whole updates, whatever a rank holds of them."""
    learner = fleet(make_config(2, layout))
    client, rows = learner.client, [t for g in groups[1:] for t in g.trajectories]
    weights = [0.1 * i - 0.8 for i in range(len(rows))]
    wrong = [weights[0] + 0.3, *weights[1:]]

    async def accumulate(size: int, coefficients: list[float]) -> None:
        for i in range(0, len(rows), size):
            await client.accumulate(rows[i : i + size], coefficients[i : i + size])

    async def check(coefficients: list[float]) -> float | None:
        await accumulate(4, coefficients)
        await client.parity_begin(7.0)
        for size in (5, 3):
            await accumulate(size, weights)
            await client.parity_add()
        figures = await client.parity_end()
        await client.step(7.0)
        assert figures.control_relative_error is not None
        assert 0 < figures.control_relative_error < 1e-5
        return figures.gradient_relative_error

    assert learner.wait(check(weights)) < 1e-5
    found, directions = learner.wait(check(wrong)), []
    for coefficients in (wrong, weights):
        alone = one_rank(make_config())
        alone.accumulate([scored(t) for t in rows], coefficients)
        directions.append(torch.cat([t.flatten().double() for t in alone.update_direction(7.0)]))
    assert found == pytest.approx(relative_error(*directions), rel=1e-4)
