"""A checkpoint is used whole and as it was written, or refused in one line that says what to do."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import checkpoint, continuation, job
from harness.checkpoint import Damaged
from harness.composition import compose, free_folder
from harness.display import Display
from harness.experiment import execute
from harness.protocols import UsageError

SETTINGS = (
    "env=simulated", "workload=math", "hardware=8xb200", "schedule=sync", "tracking=none",
    "rollout.groups_per_batch=2", "rollout.group_size=2", "budget.limit=3", "checkpoint.every=1",
    "checkpoint.keep=2",
)  # fmt: skip


def run(folder: Path, *overrides: str) -> str:
    """Run a job in this process; what it said."""
    folder.mkdir(parents=True, exist_ok=True)
    config, said = compose([*SETTINGS, *overrides]), io.StringIO()
    job.check(config)
    with Display(said) as display:
        execute(config, folder, display)
    return said.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    run(folder)
    return folder


@pytest.fixture
def killed(finished: Path, tmp_path: Path) -> Path:
    """The run without its end."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "summary.json").unlink()
    return folder


def test_the_last_ones_are_kept_and_nothing_else_is_left(finished: Path) -> None:
    names = [path.name for path in checkpoint.listed(finished)]
    assert names == ["update-000003", "update-000002"]
    there = {path.name for path in (finished / "checkpoints").iterdir()}
    assert there == set(names)
    suffixes = {path.suffix for path in (finished / "checkpoints" / names[0]).iterdir()}
    assert suffixes == {".json"}  # and a real learner's .safetensors: nothing that executes


def truncate(folder: Path) -> None:
    path = folder / "state.json"
    path.write_bytes(path.read_bytes()[:-10])


def flip(folder: Path) -> None:
    path = folder / "state.json"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove(folder: Path) -> None:
    (folder / "state.json").unlink()


def forge(folder: Path) -> None:
    """A changed file with its checksum changed alike."""
    path = folder / "checksums.json"
    content = json.loads(path.read_text())
    content["logs"].clear()
    path.write_text(json.dumps(content))


def empty(folder: Path) -> None:
    (folder / "checksums.json").write_bytes(b"")


def rewrite_log(folder: Path) -> None:
    path = folder.parents[1] / "trajectories.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"reward":1', b'"reward":0', 1))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncate, r"state\.json has \d+ bytes instead of \d+"),
        (flip, r"state\.json is not what was written"),
        (remove, r"state\.json is missing"),
        (forge, r"checksums\.json is not what was written"),
        (empty, r"checksums\.json cannot be read"),
    ],
)
def test_damage_is_refused_by_name_and_the_next_older_one_is_offered(
    killed: Path, damage: Callable[[Path], None], why: str
) -> None:
    newest, older = checkpoint.listed(killed)
    damage(newest)
    with pytest.raises(UsageError, match=f"checkpoint update-000003 is damaged: {why}") as refused:
        run(killed, f"resume={killed}")
    assert f"resume={older}" in str(refused.value) and "\n" not in str(refused.value)
    assert "going on from update-000002" in run(killed, f"resume={older}")
    assert json.loads((killed / "summary.json").read_text())["updates"] == 3
    checkpoint.verify(newest, killed)  # made anew on the way


def test_auto_takes_the_older_one_itself_and_says_so(killed: Path) -> None:
    flip(checkpoint.listed(killed)[0])
    said = run(killed, "resume=auto")
    assert "update-000003 is damaged" in said and "going on from update-000002" in said


def test_with_nothing_whole_a_named_run_is_refused_and_auto_begins_again(killed: Path) -> None:
    rewrite_log(checkpoint.listed(killed)[0])
    with pytest.raises(UsageError, match=r"trajectories\.jsonl is not.*no older one is whole"):
        run(killed, f"resume={killed}")
    assert "from the beginning" in run(killed, "resume=auto")


def test_another_configuration_or_folder_is_refused(killed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"another configuration: seed=1 \(there 0\)"):
        run(killed, f"resume={killed}", "seed=1")
    with pytest.raises(UsageError, match=r"goes on in its own folder"):
        run(tmp_path / "other", f"resume={killed}")
    with pytest.raises(UsageError, match=r"update-000009: no such checkpoint; the next older one"):
        run(killed, f"resume={killed}/checkpoints/update-000009")
    with pytest.raises(UsageError, match=r"resume=nowhere: no such"):
        run(killed, "resume=nowhere")
    with pytest.raises(UsageError, match=r"no checkpoint in it"):
        run(tmp_path / "other", f"resume={tmp_path / 'other'}")


def test_how_often_and_where_is_no_other_configuration(killed: Path) -> None:
    assert "going on from update-000003" in run(killed, f"resume={killed}", "checkpoint.keep=1")


def test_a_finished_run_is_skipped_and_said_so(killed: Path) -> None:
    run(killed, f"resume={killed}")
    written = (killed / "summary.json").stat().st_mtime_ns
    assert "has finished already: skipped" in run(killed, "resume=auto")
    assert (killed / "summary.json").stat().st_mtime_ns == written
    with pytest.raises(UsageError, match=r"another configuration: seed=1"):
        run(killed, "resume=auto", "seed=1")


def test_two_processes_do_not_write_one_run(killed: Path) -> None:
    config = compose([*SETTINGS, f"resume={killed}"])
    with (
        continuation.alone(config, killed),
        pytest.raises(UsageError, match="still alive"),
    ):
        run(killed, f"resume={killed}")


def test_the_folder_of_a_run_that_goes_on_is_its_own(tmp_path: Path) -> None:
    there = tmp_path / "run" / "checkpoints" / "update-000002"
    there.mkdir(parents=True)
    for resume in (tmp_path / "run", there):
        assert free_folder(str(tmp_path / "new"), str(resume)) == str(tmp_path / "run")
    assert free_folder(str(tmp_path / "new"), "auto") == str(tmp_path / "new")
    with pytest.raises(UsageError, match="no such folder"):
        free_folder(str(tmp_path / "new"), str(tmp_path / "nowhere"))


def test_floats_come_back_as_they_were(tmp_path: Path) -> None:
    value = {"a": [0.1 + 0.2, math.inf, 5e-324], "b": {"c": -math.inf, "d": math.nan, "e": None}}
    checkpoint.dump(tmp_path / checkpoint.STATE, value)
    found = checkpoint.load(tmp_path)
    assert found["a"] == value["a"] and found["b"]["c"] == -math.inf
    assert math.isnan(found["b"]["d"]) and found["b"]["e"] is None
    json.loads((tmp_path / checkpoint.STATE).read_text(), parse_constant=pytest.fail)  # strict


def test_a_checkpoint_that_was_not_finished_is_none(killed: Path) -> None:
    part = checkpoint.begin(killed, 4)
    (part / checkpoint.STATE).write_text("{")
    assert checkpoint.listed(killed)[0].name == "update-000003"
    checkpoint.keep(killed, 2)
    assert not part.exists()


def test_what_a_log_grew_by_is_read_once_and_a_shorter_one_is_damage(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_text("one\n")
    digests = checkpoint.Digests(tmp_path)
    first = digests.of("a.jsonl")
    with log.open("a") as file:
        file.write("two\n")
    second = digests.of("a.jsonl")
    assert second == checkpoint.Digests(tmp_path).of("a.jsonl") != first
    part = checkpoint.begin(tmp_path, 1)
    whole = checkpoint.commit(part, tmp_path, 1, {"a.jsonl": first})
    assert checkpoint.verify(whole, tmp_path) == {"a.jsonl": first}  # it may have grown
    os.truncate(log, 2)
    with pytest.raises(Damaged, match=r"a\.jsonl has 2 bytes instead of 4"):
        checkpoint.verify(whole, tmp_path)
