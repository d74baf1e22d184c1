"""Which teacher a configuration means, and whether it reads the policy's tokens as they are meant.
Torch-free."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from harness.cluster.local import Worker
from harness.cluster.pinning import teacher_cores
from harness.cluster.protocol import MakeWorker
from harness.config import Config, TeacherConfig
from harness.policy.load import resolve
from harness.protocols import Clock, UsageError
from harness.teachers.client import TorchTeacherClient
from harness.teachers.protocol import Teacher
from harness.teachers.recorded import RecordedTeacher
from harness.teachers.scoring import Scoring
from harness.teachers.vllm import VllmTeacher

# name -> the settings that it needs; nobody else may have them.
_OWN = {"torch": (), "recorded": ("file",), "vllm": ("url", "model")}


def check(config: Config) -> None:
    """Raises UsageError, one line, for a teacher that cannot be asked. Only objective=opd has
    one."""
    if config.objective.name != "opd":
        return
    teacher = config.teacher
    _settings(teacher)
    if config.agent.name == "policy" and teacher.name != "recorded":
        folder = teacher_folder(teacher)
        if not (folder / "tokenizer.json").is_file():
            raise UsageError(
                f"teacher.path={folder}: no tokenizer.json there; give a Hugging Face folder"
            )
    if teacher.name == "vllm" and config.rollout.temperature != 1.0:
        raise UsageError(
            f"teacher.name=vllm: its prompt log-probabilities are at temperature 1, "
            f"rollout.temperature={config.rollout.temperature} samples at another; take "
            "rollout.temperature=1, or teacher=torch"
        )
    if teacher.name == "recorded" and teacher.file is not None:
        _same_temperature(Path(teacher.file).expanduser(), config.rollout.temperature)


def _settings(teacher: TeacherConfig) -> None:
    defaults = TeacherConfig()
    for name, keys in _OWN.items():
        for key in keys:
            value = getattr(teacher, key)
            if name == teacher.name and value is None:
                raise UsageError(f"teacher.{key}=null: teacher={name} needs it")
            if name != teacher.name and value != getattr(defaults, key):
                raise UsageError(
                    f"teacher.{key}={value}: teacher={teacher.name} does not read it; leave it "
                    f"null, or take teacher={name}"
                )


def _same_temperature(file: Path, temperature: float) -> None:
    """The manifest beside a recording says at which temperature it was made; a recording without
    one is taken at its user's word."""
    manifest = file.with_name("manifest.json")
    if not manifest.is_file():
        return
    recorded = json.loads(manifest.read_text("utf-8"))["config"]["rollout"]["temperature"]
    if recorded != temperature:
        raise UsageError(
            f"teacher.file={file}: was scored at rollout.temperature={recorded}, this run has "
            f"{temperature}; take the same"
        )


def teacher_folder(teacher: TeacherConfig) -> Path:
    """Of a teacher's weights and tokenizer. Raises UsageError for one that is not there."""
    return resolve(teacher.path or teacher.policy)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """What token ids mean to a policy: hashes of its vocabulary and of its chat template."""

    vocabulary: str
    chat_template: str

    @classmethod
    def of(cls, folder: Path) -> Tokens:
        from tokenizers import Tokenizer

        from harness.policy.tokenizer import chat_template

        vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
        ids = json.dumps(sorted(vocabulary.items(), key=lambda pair: pair[1]))
        return cls(_hash(ids), _hash(chat_template(folder)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_same_tokens(student: Path, teacher: Path) -> None:
    """Raises UsageError where the two read token ids differently, whatever they are called."""
    ours, theirs = Tokens.of(student), Tokens.of(teacher)
    for name in ("vocabulary", "chat_template"):
        if getattr(ours, name) != getattr(theirs, name):
            what = name.replace("_", " ")
            raise UsageError(
                f"teacher.path={teacher}: its {what} (sha256 {getattr(theirs, name)[:12]}) is not "
                f"that of policy={student} ({getattr(ours, name)[:12]}); a teacher must share the "
                "policy's tokenizer and chat template"
            )


def _check_top_k(config: Config, student: Path, teacher: Path) -> None:
    sizes = [
        json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"]
        for folder in (student, teacher)
    ]
    top_k = config.objective.top_k
    if top_k > min(sizes):
        raise UsageError(
            f"objective.top_k={top_k}: the policy has {min(sizes)} tokens; take at most that"
        )
    if top_k and len(set(sizes)) > 1:
        raise UsageError(
            f"objective.top_k={top_k}: the policy has {sizes[0]} outputs and the teacher "
            f"{sizes[1]}; they must be as many, or take objective.top_k=0"
        )


def make_teacher(config: Config, student: Path, worker: MakeWorker = Worker) -> Teacher | None:
    """The teacher of a run, not started yet; None where the objective has none. Raises UsageError
    where its tokens are not the policy's."""
    if config.objective.name != "opd":
        return None
    teacher = config.teacher
    if teacher.name == "recorded":  # its tokens are looked up as they are
        return RecordedTeacher(Path(str(teacher.file)).expanduser())
    folder = teacher_folder(teacher)
    check_same_tokens(student, folder)
    _check_top_k(config, student, folder)
    if teacher.name == "vllm":
        return VllmTeacher(str(teacher.url), str(teacher.model), teacher.timeout_s)
    return TorchTeacherClient(
        folder,
        sessions=teacher.sessions,
        threads=teacher.devices,
        affinity=teacher_cores(config),
        worker=worker,
    )


def make_scoring(config: Config, teacher: Teacher | None, clock: Clock) -> Scoring | None:
    """The rollouts' way to the teacher."""
    if teacher is None:
        return None
    return Scoring(
        teacher,
        clock,
        temperature=config.rollout.temperature,
        top_k=config.objective.top_k,
        retries=config.rollout.retries,
        timeout_s=config.teacher.timeout_s,
        wait_s=config.teacher.wait_s,
    )
