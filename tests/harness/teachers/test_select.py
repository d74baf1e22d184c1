"""Which teacher a configuration means, and that it reads the policy's tokens as they are meant."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cluster.devices import devices
from harness.cluster.pinning import cores, teacher_cores
from harness.composition import compose
from harness.config import Config
from harness.policy.load import resolve
from harness.protocols import UsageError
from harness.teachers.client import TorchTeacherClient
from harness.teachers.select import check_same_tokens, make_teacher
from harness.validation import validate

Configure = Callable[..., Config]
TINY = resolve("tiny")


def config(*overrides: str) -> Config:
    return compose(["tracking=none", "objective=opd", *overrides])


def copied(folder: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder / name)
    return folder


def test_the_same_content_under_another_name_is_the_same(tmp_path: Path):
    check_same_tokens(TINY, copied(tmp_path))


def test_the_bundled_teacher_reads_what_the_policy_writes():
    check_same_tokens(TINY, resolve("tiny_teacher"))
    assert isinstance(make_teacher(config(), TINY), TorchTeacherClient)


def test_another_vocabulary_is_one_clear_line(tmp_path: Path):
    """Of as many tokens, two of which have changed places."""
    file = copied(tmp_path) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match=r"teacher\.path=.*: its vocabulary") as caught:
        check_same_tokens(TINY, tmp_path)
    assert "\n" not in str(caught.value)


def test_another_chat_template_is_one_clear_line(tmp_path: Path):
    file = copied(tmp_path) / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["chat_template"] += " "
    file.write_text(json.dumps(settings))
    with pytest.raises(UsageError, match="its chat template"):
        check_same_tokens(TINY, tmp_path)


def test_over_likeliest_tokens_outputs_must_be_as_many(tmp_path: Path):
    file = copied(tmp_path) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 1152}))
    make_teacher(config(f"teacher.path={tmp_path}"), TINY)
    with pytest.raises(UsageError, match="the policy has 1024 outputs and the teacher 1152"):
        make_teacher(config(f"teacher.path={tmp_path}", "objective.top_k=8"), TINY)
    with pytest.raises(UsageError, match="the policy has 1024 tokens; take at most that"):
        make_teacher(config("objective.top_k=1025"), TINY)


def test_nobody_teaches_without_a_distillation():
    assert make_teacher(compose(["tracking=none"]), TINY) is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("teacher=recorded", "teacher.file=null: teacher=recorded needs it"),
        ("teacher=vllm", "teacher.url=null: teacher=vllm needs it"),
        ("teacher=vllm teacher.url=http://x", "teacher.model=null: teacher=vllm needs it"),
        ("teacher.url=http://x", "teacher=torch does not read it"),
        ("teacher.file=README.md", "teacher=torch does not read it"),
        ("teacher.path=nowhere", "teacher.path=nowhere: no such file or folder"),
        ("teacher.policy=big", "policy=big: no such folder, and no model of that name"),
        (
            "teacher=vllm teacher.url=http://x teacher.model=m rollout.temperature=0.7",
            "at temperature 1, rollout.temperature=0.7",
        ),
        ("teacher.timeout_s=0", "teacher.timeout_s=0.0: out of range"),
    ],
)
def test_a_teacher_that_cannot_be_asked_is_one_line(overrides: str, words: str):
    with pytest.raises(UsageError) as caught:
        validate(config(*overrides.split()))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scores_of_another_temperature_are_refused(tmp_path: Path):
    (tmp_path / "trajectories.jsonl").write_text("")
    (tmp_path / "manifest.json").write_text(
        json.dumps({"config": {"rollout": {"temperature": 1.0}}})
    )
    given = ["teacher=recorded", f"teacher.file={tmp_path}/trajectories.jsonl"]
    validate(config(*given))
    with pytest.raises(UsageError, match=r"was scored at rollout\.temperature=1\.0"):
        validate(config(*given, "rollout.temperature=0.9"))


def test_a_teacher_of_this_machine_is_counted_and_one_elsewhere_is_not():
    here = devices(config("teacher.devices=2"))
    assert (here.engine, here.learner, here.teacher, here.total) == (1, 1, 2, 4)
    colocated = ["schedule=sync", "schedule.placement=colocated"]
    assert devices(config(*colocated)).total == 2
    assert devices(config("teacher=recorded")).total == 2
    assert devices(compose(["tracking=none"])).total == 2


def test_a_pinned_teacher_has_cores_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 7, 9, 11})
    pinned = config("cluster.pin_cores=true", "teacher.devices=2", "schedule.learner_devices=2")
    assert cores(pinned) == ([3], [5, 7])
    assert teacher_cores(pinned) == [9, 11]
    with pytest.raises(UsageError, match=r"and teacher\.devices=3 need 6 cores"):
        cores(config("cluster.pin_cores=true", "teacher.devices=3", "schedule.learner_devices=2"))
    assert teacher_cores(config()) is None
