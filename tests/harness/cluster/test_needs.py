"""What a run asks a cluster for, and who gets which bundle."""

from __future__ import annotations

import pytest

from harness.cluster.needs import Group, bundle_of, groups, in_words, shares, total
from harness.composition import compose

MANY = (
    "engine.replicas=2", "schedule.engine_devices=4", "learner.ranks=3",
    "schedule.learner_devices=3",
)  # fmt: skip


def test_each_process_has_a_bundle_of_its_threads() -> None:
    asked = groups(compose([*MANY]), trains=True)
    assert asked == [
        Group("learner", "PACK", [{"CPU": 1}] * 3),
        Group("engine", "SPREAD", [{"CPU": 2}] * 2),
    ]
    assert total(asked) == {"CPU": 7}
    assert bundle_of("engine/1", compose([*MANY]), True) == ("engine", 1)
    assert bundle_of("learner/2", compose([*MANY]), True) == ("learner", 2)
    assert groups(compose([*MANY]), trains=False) == asked[1:]  # harness.evaluate


def test_a_gpu_each_where_the_learner_has_gpus() -> None:
    config = compose(["learner.device=cuda", "learner.ranks=2", "schedule.learner_devices=2"])
    assert groups(config, True)[0] == Group("learner", "PACK", [{"CPU": 1, "GPU": 1}] * 2)


def test_a_teacher_has_its_own() -> None:
    config = compose(["objective=opd", "teacher.devices=2"])
    assert groups(config, True)[-1] == Group("teacher", "PACK", [{"CPU": 2}])
    assert bundle_of("teacher/0", config, True) == ("teacher", 0)


def test_those_that_take_turns_share_the_learners() -> None:
    config = compose(
        [
            "schedule=sync", "schedule.placement=colocated", "schedule.engine_devices=4",
            "schedule.learner_devices=4", "engine.replicas=4", "learner.ranks=2",
        ]
    )  # fmt: skip
    assert groups(config, True) == [Group("learner", "PACK", [{"CPU": 2}] * 2)]
    assert [bundle_of(f"engine/{n}", config, True)[1] for n in range(4)] == [0, 0, 1, 1]


def test_nothing_for_scripts_nor_for_work_in_the_harness_itself() -> None:
    assert groups(compose(["agent=oracle"]), False) == []
    virtual = compose(["env=swebench_virtual", "hardware=8xb200", "workload=swebench_verified"])
    assert groups(virtual, True) == []


@pytest.mark.parametrize(
    ("room", "limit", "expected"),
    [
        ({"a": 64, "b": 64}, 64, {"a": 32, "b": 32}),
        ({"a": 2, "b": 64}, 10, {"a": 2, "b": 8}),
        ({"a": 2, "b": 3}, 64, {"a": 2, "b": 3}),
        ({"a": 8, "b": 8, "c": 8}, 2, {"a": 1, "b": 1}),
        ({"a": 0.5}, 4, {}),
    ],
)
def test_sandboxes_go_evenly_where_there_is_room(room, limit, expected) -> None:
    assert shares(room, limit) == expected


def test_resources_in_words() -> None:
    assert in_words({"sandbox": 64.0, "CPU": 2.5}) == "CPU 2.5, sandbox 64"
