"""A learner that goes on from a checkpoint makes the updates that the one before had made next."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from baselines.sync import Sync
from harness.protocols import UsageError
from thundersync.recorded import RecordedBatch
from thundersync.synthetic import arrival, synthetic_groups

REWARDS = (0.0, 1.0, 0.25)


@pytest.mark.parametrize(
    ("ranks", "layout", "files", "adapters"),
    [
        (1, "ddp", 1, 0), (2, "ddp", 1, 0), (2, "sharded", 1, 0), (2, "fsdp", 2, 0),
        (1, "ddp", 1, 3), (2, "fsdp", 2, 3),
    ],
)  # fmt: skip
def test_weights_and_moments_come_back_bit_for_bit(
    fleet, make_config, tmp_path: Path, ranks: int, layout: str, files: int, adapters: int
) -> None:
    """Of adapters alone where they alone are trained: what they lie on is the policy's own."""
    config = make_config(ranks, layout)
    config.schedule.learning_rate = 1e-2
    config.policy.lora.rank = adapters
    groups = synthetic_groups(1, 128, REWARDS)

    def batch() -> RecordedBatch:
        return RecordedBatch(groups, arrival(groups, 0), burst=3)

    first = fleet(config)
    first.play(Sync(config), [batch(), batch()])
    state = first.wait(first.client.save(str(tmp_path)))
    assert len(list(tmp_path.glob("learner-*.safetensors"))) == files
    kept = load_file(tmp_path / "learner-0.safetensors")
    assert len(kept) > 4 and all(("lora" in name) == bool(adapters) for name in kept)
    first.play(Sync(config), [batch()])
    wanted = Path(first.wait(first.client.publish())[0]).read_bytes()

    second = fleet(config)
    second.wait(second.client.restore(str(tmp_path), state))
    second.play(Sync(config), [batch()])
    path, version = second.wait(second.client.publish())
    assert (Path(path).read_bytes(), version) == (wanted, 3)


def test_another_policy_is_refused_by_the_name_of_its_first_difference(
    one_rank, make_config, tmp_path: Path
) -> None:
    learner = one_rank(make_config())
    state = learner.save(str(tmp_path))
    path = tmp_path / "learner-0.safetensors"
    found = load_file(path)
    name = "weight/model.layers.0.mlp.up_proj.weight"
    save_file(found | {name: found[name][:-1].contiguous()}, path)
    with pytest.raises(UsageError, match=r"another policy: model\.layers\.0\.mlp\.up_proj.*69, 48"):
        learner.restore(str(tmp_path), state)
    del found[name]
    save_file(found, path)
    with pytest.raises(UsageError, match=r"up_proj\.weight is absent there"):
        learner.restore(str(tmp_path), state)
    path.unlink()
    with pytest.raises(UsageError, match=r"other learner\.ranks"):
        learner.restore(str(tmp_path), state)


def test_turns_go_on_as_was_measured_when_the_run_began(
    one_rank, make_config, tmp_path: Path
) -> None:
    """Which graphs are kept decides the bits: a later measurement, or a machine with other memory,
    may not."""
    config = make_config()
    config.schedule.release, config.segments.way = "turn", "retain"
    first = one_rank(config)
    first._turns.settle({"retain_from": 17, "max_live_bytes": 1 << 20})
    state = first.save(str(tmp_path))
    second = one_rank(config)
    assert second.turn_settings() != first.turn_settings()
    second.restore(str(tmp_path), state)
    assert second.turn_settings() == {"retain_from": 17, "max_live_bytes": 1 << 20}
