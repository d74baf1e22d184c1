"""The part of the Dockerfile language that needs no engine, for sandboxes without images.

A task whose Dockerfile starts from the mini image and uses FROM, USER, WORKDIR, ENV, COPY of plain
paths and RUN without a network only can be set up inside a running sandbox: files are put, commands
are run, in order. Whatever else a Dockerfile says needs a container engine.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.protocols import InfrastructureError, Sandbox
from environments.sandbox.images import MINI_IMAGE

_HARMLESS = ("LABEL", "MAINTAINER", "STOPSIGNAL", "EXPOSE", "CMD")
_FETCHES = re.compile(r"(^|[\s;&|(])(apt|apt-get|apk|dnf|yum|pip3?|npm|curl|wget|git clone)\s")
_WRITABLE_ROOTS = ("/tmp",)
AGENT = ("agent", "65532", "agent:agent", "65532:65532")


@dataclass(frozen=True)
class Dockerfile:
    """The instructions of the last stage, as (word, argument)."""

    base: str
    instructions: Sequence[tuple[str, str]]

    @property
    def workdir(self) -> str:
        """Where commands run; "" where the base image decides."""
        return self._last("WORKDIR")

    @property
    def user(self) -> str:
        return self._last("USER")

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for word, argument in self.instructions:
            if word == "ENV":
                found |= _assignments(argument)
        return found

    def _last(self, word: str) -> str:
        return next((a for w, a in reversed(self.instructions) if w == word), "")

    def engine_needed_for(self, context: Mapping[str, bytes]) -> str:
        """Why only a container engine can make this; empty where `play` can."""
        if self.base != MINI_IMAGE:
            return f"FROM {self.base}: only {MINI_IMAGE} has a counterpart without an engine"
        if not self.workdir.startswith("/"):
            return "no WORKDIR with an absolute path"
        if ".dockerignore" in context:
            return ".dockerignore"
        writable = (self.workdir, *_WRITABLE_ROOTS)
        for word, argument in self.instructions:
            line = f"{word} {argument}"
            if word == "COPY":
                sources, target = _copy(argument, self.workdir)
                if not sources or not all(_found(source, context) for source in sources):
                    return line
                if not any(_inside(target, root) for root in writable):
                    return line
            elif word == "USER":
                if argument not in (*AGENT, "root"):
                    return line
            elif word == "WORKDIR":
                if argument != self.workdir:
                    return line
            elif word == "RUN":
                if argument.startswith(("[", "--")) or _FETCHES.search(argument):
                    return line
            elif word not in ("ENV", *_HARMLESS):
                return line
        return ""


def parse(text: str) -> Dockerfile | None:
    """None where there is no FROM."""
    joined = re.sub(r"\\[ \t]*\n", " ", re.sub(r"(?m)^[ \t]*#.*\n?", "", text))
    base, instructions = "", []
    for line in joined.splitlines():
        word, _, argument = line.strip().partition(" ")
        word, argument = word.upper(), argument.strip()
        if word == "FROM":  # of several stages the last one counts
            base = next((part for part in argument.split() if not part.startswith("--")), "")
            instructions = []
        elif word:
            instructions.append((word, argument))
    return Dockerfile(base, instructions) if base else None


async def play(
    dockerfile: Dockerfile, context: Mapping[str, bytes], sandbox: Sandbox, timeout_s: float
) -> None:
    """Do to `sandbox` what building the image would; raises InfrastructureError where it fails."""
    exports = ""
    for word, argument in dockerfile.instructions:
        if word == "ENV":
            items = _assignments(argument).items()
            exports += "".join(f"export {name}={shlex.quote(value)}; " for name, value in items)
        elif word == "COPY":
            sources, target = _copy(argument, dockerfile.workdir)
            files = _copied(sources, target, argument.endswith("/"), context)
            await sandbox.put(files, base="/")
        elif word == "RUN":
            result = await sandbox.exec(exports + argument, timeout_s=timeout_s)
            if result.exit_code != 0:
                said = " ".join(result.output[-200:].split())
                raise InfrastructureError("image", f"RUN {argument[:80]}: {said}")


def _assignments(argument: str) -> dict[str, str]:
    words = shlex.split(argument)
    if words and "=" not in words[0]:  # the old form: ENV name the whole rest
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _copy(argument: str, workdir: str) -> tuple[list[str], str]:
    """(sources, absolute target); no sources where an option or a glob needs an engine."""
    words = argument.split()
    while words and words[0].startswith("--"):
        if words[0].removeprefix("--chown=") not in AGENT:
            return [], "/"
        words.pop(0)
    if len(words) < 2 or any(character in argument for character in "*?[\"'$"):
        return [], "/"
    sources = [posixpath.normpath(source).lstrip("/") for source in words[:-1]]
    return sources, posixpath.normpath(posixpath.join(workdir, words[-1]))


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")


def _found(source: str, context: Mapping[str, bytes]) -> bool:
    return source == "." or any(_inside(path, source) for path in context)


def _copied(
    sources: Sequence[str], target: str, into: bool, context: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Path inside -> content. Of a folder its content is copied, a file keeps its name where the
    target is a folder."""
    files = {}
    for source in sources:
        for path, content in context.items():
            if path == source:
                whole = into or len(sources) > 1 or target == "."
                inside = posixpath.join(target, posixpath.basename(path)) if whole else target
            elif source == "." or _inside(path, source):
                inside = posixpath.join(target, path if source == "." else path[len(source) + 1 :])
            else:
                continue
            files[inside.lstrip("/")] = content
    return files
