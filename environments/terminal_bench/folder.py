"""One task folder: its files, its settings, and the image that they make."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from environments.terminal_bench import dockerfile as dockerfiles
from environments.terminal_bench import tasktoml
from environments.terminal_bench.dockerfile import Dockerfile
from environments.terminal_bench.tasktoml import TaskError, TaskToml

IMAGE_PREFIX = "thundersync/terminal-bench"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml")


@dataclass(frozen=True)
class File:
    """A regular file of a task folder."""

    content: bytes = field(repr=False)
    executable: bool


Files = Mapping[str, File]


@dataclass(frozen=True)
class TaskFolder:
    """A task as it lies on disk. Paths are relative to environment/, tests/ and solution/."""

    name: str
    path: Path
    settings: TaskToml
    instruction: str
    environment: Files = field(repr=False)
    tests: Files = field(repr=False)
    solution: Files = field(repr=False)
    dockerfile: Dockerfile | None
    sha256: str

    @cached_property
    def image(self) -> str:
        """The prebuilt image, or the tag of the one that its Dockerfile makes."""
        if self.settings.docker_image is not None:
            return self.settings.docker_image
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        digest = hashlib.sha256(self.context).hexdigest()[:16]
        return f"{IMAGE_PREFIX}:{name[:80]}-{digest}"

    @cached_property
    def contents(self) -> dict[str, bytes]:
        """Path in environment/ -> content."""
        return {path: file.content for path, file in self.environment.items()}

    @cached_property
    def context(self) -> bytes:
        """environment/ as a tar for a container engine, the same bytes on every machine."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            parents = {p for path in self.environment for p in PurePosixPath(path).parents}
            for folder in sorted(map(str, parents - {PurePosixPath(".")})):
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            for path, file in sorted(self.environment.items()):
                info = tarfile.TarInfo(path)
                info.size, info.mode = len(file.content), 0o755 if file.executable else 0o644
                archive.addfile(info, io.BytesIO(file.content))
        return buffer.getvalue()


def load(path: Path) -> TaskFolder:
    """Raises TaskError, one line that names the file, for a folder that is no task."""
    toml, instruction = path / "task.toml", path / "instruction.md"
    settings = tasktoml.parse(_text(toml), str(toml))
    text = _text(instruction).strip()
    if not text:
        raise TaskError(f"{instruction}: is empty")
    environment, tests = _read(path / "environment"), _read(path / "tests")
    if "test.sh" not in tests:
        raise TaskError(f"{path / 'tests/test.sh'}: is missing")
    for name in _COMPOSE:
        if name in environment:
            raise TaskError(f"{path / 'environment' / name}: several containers are not run")
    dockerfile = None
    if settings.docker_image is None:
        if "Dockerfile" not in environment:
            raise TaskError(
                f"{path / 'environment/Dockerfile'}: is missing, and task.toml names no "
                "environment.docker_image"
            )
        source = environment["Dockerfile"].content.decode("utf-8", "replace")
        dockerfile = dockerfiles.parse(source)
        if dockerfile is None:
            raise TaskError(f"{path / 'environment/Dockerfile'}: has no FROM")
    return TaskFolder(
        name=path.name,
        path=path,
        settings=settings,
        instruction=text,
        environment=environment,
        tests=tests,
        solution=_read(path / "solution"),
        dockerfile=dockerfile,
        sha256=_digest(path),
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"{file}: is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: cannot be read: {error}") from error


def _read(folder: Path) -> dict[str, File]:
    """Every file below `folder`. A program installed from a wheel has lost its mode, so one that
    starts with #! counts as executable; a link could lead out of the folder and is refused."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise TaskError(f"{path}: is a symbolic link; put the file itself there")
        if not path.is_file():
            continue
        try:
            content = path.read_bytes()
            executable = content.startswith(b"#!") or bool(path.stat().st_mode & 0o100)
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error}") from error
        files[path.relative_to(folder).as_posix()] = File(content, executable)
    return files


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            name = file.relative_to(path).as_posix()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
