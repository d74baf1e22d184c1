"""One step off: exactly one version behind, and nothing rolls out while weights change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from baselines.one_step_off import OneStepOff
from tests.baselines.conftest import World, closing_at_random, closing_in_order, settings


@given(
    seed=st.integers(0, 2**20), groups_per_batch=st.integers(1, 3), room=st.sampled_from([1, 10**6])
)
@hypothesis_settings(max_examples=50, deadline=None)
def test_every_token_is_one_version_old_but_the_first_batch_s(seed, groups_per_batch, room):
    world = World(groups_per_batch=groups_per_batch)
    run = world.run(OneStepOff(settings()), 5, lambda w: closing_at_random(w, seed), room)
    assert [(row["staleness_mean"], row["staleness_max"]) for row in run.rows] == [
        (0.0, 0), *[(1.0, 1)] * 4
    ]  # fmt: skip
    size = groups_per_batch
    assert [[int(n) for n in row["groups"].split()] for row in run.rows] == [
        list(range(k * size, (k + 1) * size)) for k in range(5)
    ]
    assert world.published_while_open == [0] * 5
    assert len(world.begun) == 5 * size  # no batch that no update could use


def test_the_next_batch_rolls_out_while_the_learner_works():
    world = World()
    world.run(OneStepOff(settings()), 4, closing_in_order, room=2)
    assert world.begun_while_learning
