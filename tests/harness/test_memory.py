"""A ledger whose worst case does not fit is refused before any rollout; the way out fits."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.composition import compose
from harness.memory import LearnerMemory, LedgerPlan, check, ledger_plan
from harness.parts import learner_options
from harness.policy.load import resolve
from harness.protocols import UsageError

MIB = 2**20
PLAN = LedgerPlan(
    form="auto", storage="device", release="submit", buckets=2, groups=8, group_size=8,
    max_open_groups=None, gradient_bytes=4, stored_bytes=4, always=False,
)  # fmt: skip
# 1 MiB a buffer: total, gradient and two optimizer states are 4 MiB.
MEMORY = LearnerMemory("cpu", 0, 0, parameters=MIB // 4, buffer_elements=MIB // 4)


def free(mib: float, memory: LearnerMemory = MEMORY) -> LearnerMemory:
    return replace(memory, free_bytes=int(mib * MIB), host_free_bytes=int(mib * MIB))


def test_the_worst_case_is_the_formula():
    assert PLAN.ledger_bytes(100) == 8 * 8 * 400  # submit: every trajectory's own is pending
    assert replace(PLAN, release="reward").ledger_bytes(100) == 8 * 2 * 400
    assert replace(PLAN, release="reward", buckets=5).ledger_bytes(100) == 8 * 5 * 400
    assert replace(PLAN, release="reward", always=True).ledger_bytes(100) == 8 * 3 * 400
    assert replace(PLAN, always=True).ledger_bytes(100) == 8 * 16 * 400
    assert replace(PLAN, stored_bytes=2).ledger_bytes(100) == 8 * 8 * 200
    # float64: two of a group committed, six pending in the gradient's own float32.
    assert replace(PLAN, stored_bytes=8).ledger_bytes(100) == 8 * (2 * 800 + 6 * 400)
    assert replace(PLAN, max_open_groups=3).ledger_bytes(100) == 3 * 8 * 400
    assert replace(PLAN, max_open_groups=20).open_groups == 8
    for release in ("group", "batch", "auto", None):
        assert replace(PLAN, release=release).ledger_bytes(100) == 0
    assert PLAN.update_bytes(100) == 800
    assert replace(PLAN, stored_bytes=2).update_bytes(100) == 1000
    assert replace(PLAN, stored_bytes=8, always=True).update_bytes(100) == 1600


def test_ranks_share_a_groups_trajectories_or_its_buffers():
    reward = replace(PLAN, release="reward")
    assert reward.ledger_bytes(100, ranks=2) == 8 * 4 * 400  # two buckets on each of two
    assert reward.ledger_bytes(100, ranks=8) == 8 * 8 * 400  # no more than trajectories
    assert PLAN.ledger_bytes(100, ranks=4) == PLAN.ledger_bytes(100)
    # Sharded, two ranks hold what one would, in halves.
    halves = replace(MEMORY, buffer_elements=MIB // 8, processes=2, sharded=True)
    check(reward, free(8 + 16, halves))
    with pytest.raises(UsageError):
        check(reward, free(8 + 15, halves))


def test_what_fits_is_silent_and_one_byte_less_is_an_error():
    check(PLAN, free(68))
    short = replace(free(68), free_bytes=68 * MIB - 1)
    with pytest.raises(UsageError) as caught:
        check(PLAN, short)
    message = str(caught.value)
    assert message.startswith(
        "ledger.max_open_groups=null, ledger.form=auto, ledger.storage=device: up to 8 open groups "
        "of 8 may hold 67 MB of ledger, beside 4 MB of total, gradient and optimizer; 71 MB is free"
        " on the learner's cpu; take ledger.max_open_groups=7, or schedule.release=reward"
    )
    assert "\n" not in message


@pytest.mark.parametrize("mib", [4.5, 10, 21, 30, 67])
@pytest.mark.parametrize("form", ["auto", "bucket"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_way_out_fits_and_none_that_fits_is_missing(mib, form, device):
    plan = replace(PLAN, form=form, buckets=8 if form == "bucket" else 2)
    memory = replace(free(mib), device=device, host_free_bytes=2**40)
    with pytest.raises(UsageError) as caught:
        check(plan, memory)
    message = str(caught.value)
    tried = {
        "schedule.release=reward": replace(plan, release="reward"),
        "ledger.form=auto": replace(plan, form="auto", buckets=2),
        "ledger.storage=host": replace(plan, storage="host"),
    } | {f"ledger.max_open_groups={n}": replace(plan, max_open_groups=n) for n in range(1, 8)}
    offered = re.findall(r"(ledger\.\w+|schedule\.release)=(\w+)", message.split("take ")[1])
    for key, value in offered:
        if value != "group":
            check(tried[f"{key}={value}"], memory)
    if device == "cuda":
        assert ("ledger.storage", "host") in offered
    if mib >= 12:
        assert any(key == "ledger.max_open_groups" for key, _ in offered)
    else:
        assert not any(key == "ledger.max_open_groups" for key, _ in offered)


def test_host_storage_is_judged_by_the_hosts_memory():
    memory = replace(MEMORY, device="cuda", free_bytes=5 * MIB, host_free_bytes=64 * MIB)
    hosted = replace(PLAN, storage="host")
    check(hosted, memory)
    with pytest.raises(UsageError, match="is free on the host"):
        check(hosted, replace(memory, host_free_bytes=63 * MIB))
    # On a CPU it is the same memory.
    with pytest.raises(UsageError, match="learner's cpu"):
        check(hosted, free(67))


def test_the_plan_follows_the_settings():
    base = ["schedule=stream", "schedule.release=submit", "rollout.group_size=6"]
    plan = ledger_plan(compose([*base, "ledger.dtype=float64", "ledger.max_open_groups=3"]))
    assert (plan.buckets, plan.group_size, plan.open_groups) == (2, 6, 3)
    assert (plan.gradient_bytes, plan.stored_bytes, plan.always) == (4, 8, False)
    assert ledger_plan(compose([*base, "ledger.form=bucket"])).buckets == 6
    assert ledger_plan(compose([*base, "ledger.form=bucket", "ledger.bucket_cap=4"])).buckets == 4
    loo = [*base, "objective.estimator=leave_one_out_std"]
    assert ledger_plan(compose(loo)).buckets == 6
    assert ledger_plan(compose([*base, "objective.entropy.coefficient=0.1"])).always
    assert ledger_plan(compose(["schedule=sync"])).open_groups == 0


def test_the_learner_refuses_before_it_answers_anything(tmp_path):
    from harness.learner.torch_learner import TorchLearner

    config = compose(["schedule=stream", "schedule.release=submit"])
    options = learner_options(config, resolve("tiny"), tmp_path)
    with pytest.raises(UsageError, match=r"ledger\.max_open_groups=null.*take ledger\.max_open"):
        TorchLearner(**options, free_bytes=200 * MIB)
    TorchLearner(**options, free_bytes=400 * MIB)


def test_a_run_that_cannot_fit_ends_with_2_before_any_rollout(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable, "-m", "harness.run", "schedule=stream", "schedule.release=submit",
            "rollout.groups_per_batch=100000", "rollout.group_size=64", "tracking=none",
            "sandbox.kind=bubblewrap", "evaluation.initial=false",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("error: ledger.max_open_groups=null, ledger.form=auto")
    assert "Traceback" not in ended.stderr
    assert ended.stdout == "" and not list(tmp_path.iterdir())  # nothing has begun
