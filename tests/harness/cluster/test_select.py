"""Which clusters there cannot be: one line each, before anything is started."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from harness.cluster import select
from harness.cluster.local import LocalCluster
from harness.composition import compose
from harness.protocols import UsageError
from harness.validation import validate


def refused(*overrides: str) -> str:
    with pytest.raises(UsageError) as raised:
        validate(compose(list(overrides)))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "ray" else find(n))


def test_ray_that_is_not_there_is_named_with_its_command(monkeypatch) -> None:
    without_ray(monkeypatch)
    assert refused("cluster=ray") == (
        "cluster=ray: ray is not installed; "
        "pip install -c constraints.txt -c constraints-ray.txt -e '.[ray]'"
    )


def test_on_paper_nothing_of_it_is_needed(monkeypatch) -> None:
    without_ray(monkeypatch)
    validate(compose(["env=simulated", "workload=swebench_verified", "hardware=8xb200",
                      "cluster=ray"]))  # fmt: skip
    assert "ray" not in sys.modules


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("cluster.address=auto",), "cluster.address=auto: cluster=local does not read it"),
        (("cluster.publication=object",), "cluster.publication=object: cluster=local does not"),
        (("cluster.start_timeout_s=5",), "cluster.start_timeout_s=5.0: cluster=local does not"),
        (("cluster=ray", "cluster.pin_cores=true"), "cluster.pin_cores=true: cluster=ray places"),
        (("cluster=ray", "sandbox=docker", "sandbox.hosts=[tcp://h:2375]"), "each node with a sa"),
        (("cluster=ray", "cluster.publication=post"), "cluster.publication=post: not available"),
        (("cluster=ray", "cluster.start_timeout_s=0"), "cluster.start_timeout_s=0.0: out of range"),
        (("engine.replicas=2",), "engine.replicas=2: cannot share schedule.engine_devices=1"),
        (("engine.replicas=0",), "engine.replicas=0: out of range"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_what_there_cannot_be_is_refused(overrides, expected) -> None:
    assert expected in refused(*overrides)


def test_the_local_cluster_is_this_machine() -> None:
    from harness.cluster.local import Worker

    cluster = LocalCluster()
    assert cluster.worker is Worker and cluster.facts() == {"name": "local"}
    assert select.on_paper(compose(["env=simulated"]))
    assert not select.on_paper(compose([]))


def test_on_paper_a_run_is_the_same_whatever_the_cluster(tmp_path) -> None:
    """To the byte; the manifest says what Ray would have been asked for."""
    import io
    import json

    from harness.display import Display
    from harness.experiment import execute

    left = {}
    for name in ("local", "ray"):
        config = compose(
            ["env=simulated", "workload=swebench_verified", "hardware=8xb200", "tracking=none",
             "rollout.groups_per_batch=2", "rollout.group_size=4", "budget.limit=2",
             "env.failures={start: 0.05, exec_transport: 0.002}", f"cluster={name}"]
        )  # fmt: skip
        validate(config)
        folder = tmp_path / name
        folder.mkdir()
        summary = execute(config, folder, Display(io.StringIO()))
        del summary["time"]["simulated_in_s"]
        assert summary.pop("cluster") == name
        files = ("updates.csv", "trajectories.jsonl", "timeline.json", "learner.jsonl")
        left[name] = [summary, *((folder / file).read_bytes() for file in files)]
        assert "ray" not in sys.modules
    assert left["ray"] == left["local"]
    facts = json.loads((tmp_path / "ray" / "manifest.json").read_text())["cluster"]
    assert facts["groups"]["engine"] == {"strategy": "SPREAD", "count": 4, "bundle": {"GPU": 1.0}}
