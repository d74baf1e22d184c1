"""What counts as a run, what is left out and why, and which runs are one comparison."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from results.load import check_comparable, labels, load, unchecked


def reasons(tmp_path: Path) -> dict[str, str]:
    return {left.name: left.why for left in load(tmp_path / "runs").left_out}


def test_whatever_is_not_whole_is_named_with_its_reason(make_run, tmp_path: Path):
    make_run("whole")
    make_run("failed", status="failed")
    for name, text in {"empty": "", "half": '{"status": "fin', "list": "[]", "other": "{}"}.items():
        (make_run(name) / "summary.json").write_text(text)
    (make_run("under_way", updates=3) / "summary.json").unlink()
    (make_run("begun") / "summary.json").unlink()
    (tmp_path / "runs" / "begun" / "updates.csv").write_text("")
    assert [run.name for run in load(tmp_path / "runs").runs] == ["whole"]
    assert reasons(tmp_path) == {
        "begun": "no summary.json after 0 updates: under way, or killed",
        "empty": "summary.json is empty",
        "failed": "status failed",
        "half": "summary.json is not JSON: half-written",
        "list": "summary.json is no object",
        "other": "summary.json lacks status, schedule, seed, budget, time, idle, staleness, "
        "accuracy: not of this harness",
        "under_way": "no summary.json after 3 updates: under way, or killed",
    }
    assert [u.name for u in load(tmp_path / "runs").under_way] == ["begun", "under_way"]


def test_a_figure_that_is_no_number_is_not_used_and_named(make_run, tmp_path: Path):
    folder = make_run("a", time={"per_update_s": float("nan"), "tail_s": float("inf")})
    with (folder / "updates.csv").open("a") as file:
        file.write("5,5,nan,inf")  # cut short: no newline yet
    (run,) = load(tmp_path / "runs").runs
    assert run.summary["time"] == {"per_update_s": None, "tail_s": None}
    assert unchecked([run]) == ["a: not a number, not used: time.per_update_s, time.tail_s"]
    assert len(run.updates) == 4


def test_neither_folder_nor_store_is_one_line(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"runs=nowhere: no such folder.*uri=sqlite"):
        load("nowhere")


def test_a_comparison_may_differ_in_what_a_schedule_owns(make_run, tmp_path: Path):
    make_run("a", "sync", 0, config={"schedule": {"name": "sync", "learning_rate": 1e-4}})
    make_run("b", "stream", 1, config={"ledger": {"form": "bucket"}, "tracking": {"uri": "x"}})
    check_comparable(load(tmp_path / "runs").runs)


def test_other_differences_are_refused_by_name_unless_meant(make_run, tmp_path: Path):
    make_run("a", "sync")
    make_run("b", "stream", config={"rollout": {"group_size": 8}})
    runs = load(tmp_path / "runs").runs
    with pytest.raises(ValueError, match=r"rollout.group_size \(4 in a, 8 in b\).*vary="):
        check_comparable(runs)
    check_comparable(runs, ["rollout.group_size"])
    check_comparable(runs, ["rollout"])
    with pytest.raises(ValueError, match=r"rollout.group_size"):
        check_comparable(runs, ["roll"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("sandbox", "docker"), ("clock", "virtual"), ("hardware", "another"), ("engine", "vllm")],
)
def test_what_the_machine_chose_is_compared_too(key: str, value: str, make_run, tmp_path: Path):
    make_run("a", "sync")
    make_run("b", "stream", **{key: value})
    runs = load(tmp_path / "runs").runs
    with pytest.raises(ValueError, match=rf"{key} \(.*{value} in b"):
        check_comparable(runs)
    check_comparable(runs, [key])


def test_equal_devices_are_part_of_the_match(make_run, tmp_path: Path):
    make_run("a", "sync")
    make_run("b", "stream", devices={"total": 4})
    with pytest.raises(ValueError, match=r"devices \(2 in a, 4 in b\)"):
        check_comparable(load(tmp_path / "runs").runs)


def test_a_sweep_says_itself_what_it_varies(make_run, tmp_path: Path):
    for size in (4, 8):
        make_run(f"g{size}", config={"rollout": {"group_size": size}})
    (tmp_path / "runs" / "multirun.yaml").write_text(
        "hydra:\n  sweeper: {params: {budget.limit: '1,2'}}\n  overrides:\n    task:\n"
        "    - rollout.group_size=4,8\n    - evaluation.marks=[0.5,0.7]\n    - seed=0\n"
    )
    loaded = load(tmp_path / "runs")
    assert loaded.swept == {"rollout.group_size", "budget.limit"}
    check_comparable(loaded.runs, loaded.swept)
    assert labels(loaded.runs) == ["sync, rollout.group_size=4", "sync, rollout.group_size=8"]


def test_commits_and_missing_configurations_are_told(make_run, tmp_path: Path):
    make_run("a")
    (make_run("b", seed=1) / "manifest.json").unlink()
    other = make_run("c", seed=2) / "manifest.json"
    other.write_text(other.read_text().replace("c0ffee", "decaf").replace("false", "true"))
    told = unchecked(load(tmp_path / "runs").runs)
    assert told == [
        "no configuration left, not compared: b",
        "the runs are of 2 commits: c0ffee, decaf",
        "files differed from the commit in 1 of 3 runs",
    ]


def test_samples_are_read_without_their_tokens(make_run, tmp_path: Path):
    folder = make_run("a", final=0.625)
    with (folder / "evaluation.jsonl").open("a") as file:
        file.write('{"phase":"final","task_id":"task-3","reward":null,"token_ids":[1]}\n')
        file.write('{"phase":"final","task_id":"task-9","rew')
    (run,) = load(tmp_path / "runs").runs
    assert run.rates("final") == {"task-0": 1.0, "task-1": 1.0, "task-2": 0.5, "task-3": 0.0}
    assert run.rates("mark-0.5")["task-1"] == 0.5
    assert [(p.spent, p.seconds, p.solve_rate) for p in run.curve] == [
        (0.0, 0.0, 0.25), (40.0, 20.0, 0.375), (80.0, 40.0, 0.625),
    ]  # fmt: skip


def test_under_a_budget_of_updates_seconds_are_those_of_its_updates(make_run, tmp_path: Path):
    make_run("a", update_s=7.0, budget={"kind": "updates", "limit": 4, "spent": 4})
    (run,) = load(tmp_path / "runs").runs
    assert [p.seconds for p in run.curve] == [0.0, 14.0, 40.0]


def test_the_head_of_a_real_line_is_enough(tmp_path: Path):
    """As harness.records writes them: what is read without parsing must be what parsing reads."""
    import json

    from harness.protocols import Trajectory
    from harness.records import Records
    from results.runs import Run

    records = Records(tmp_path)
    for n, reward in enumerate((1.0, 0.0, 0.25)):
        trajectory = Trajectory(
            trajectory_id=f"final-0-{n}", task_id="mini__a-1", difficulty="easy", group=0,
            index=n, seed=2**62, attempt=0,
        )  # fmt: skip
        trajectory.reward = reward
        records.trajectory(trajectory, file="evaluation.jsonl", phase="final")
    records.close()
    lines = [json.loads(x) for x in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    run = Run("a", {}, fetch=lambda: tmp_path)
    assert run.solved == {"final": {lines[0]["task_id"]: [True, False, False]}}


def test_a_thousand_runs_load_in_seconds(make_run, tmp_path: Path):
    for n in range(1000):
        make_run(f"{n}", ("sync", "stream")[n % 2], seed=n // 2)
    began_s = time.perf_counter()
    loaded = load(tmp_path / "runs")
    check_comparable(loaded.runs)
    assert len({*labels(loaded.runs)}) == 2
    assert time.perf_counter() - began_s < 15
