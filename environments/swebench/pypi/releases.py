"""The table of the data set, read from releases.toml. No heavy imports."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Pin:
    """One file of a package index, by the SHA-256 that the index gives for it."""

    project: str
    version: str
    sha256: str

    @property
    def sdist_name(self) -> str:
        return f"{self.project}-{self.version}.tar.gz"

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class Release:
    """A release with bugs and the next one, which fixes them.

    `sources` are the files, and the path prefixes whose *.py files, that make the gold patch;
    `left_out` are prefixes that the repository does not hold (test data of other projects, tests
    for one Python only), except what `kept` names; `python_path` is the folder of the repository to
    import from; `fail_to_pass` and `pass_to_pass` are the counts that the tests must show; `issue`
    is the problem statement.
    """

    buggy: Pin
    fixed: Pin
    sources: tuple[str, ...]
    fail_to_pass: int
    pass_to_pass: int
    left_out: tuple[str, ...]
    kept: tuple[str, ...]
    python_path: str
    difficulty: str
    issue: str = field(repr=False)

    @property
    def project(self) -> str:
        return self.buggy.project

    @property
    def instance_id(self) -> str:
        return f"pypi__{self.project}-{self.buggy.version}"


@dataclass(frozen=True)
class Table:
    """`tools` are the wheels that the tests need beside the standard library."""

    releases: tuple[Release, ...]
    tools: tuple[Pin, ...]

    def release(self, instance_id: str) -> Release:
        return next(r for r in self.releases if r.instance_id == instance_id)


@cache
def read_table() -> Table:
    with Path(__file__).with_name("releases.toml").open("rb") as file:
        data = tomllib.load(file)
    releases = [
        Release(
            Pin(entry["project"], *entry["buggy"]),
            Pin(entry["project"], *entry["fixed"]),
            tuple(entry["sources"]),
            entry["fail_to_pass"],
            entry["pass_to_pass"],
            tuple(entry.get("left_out", ())),
            tuple(entry.get("kept", ())),
            entry.get("python_path", ""),
            entry["difficulty"],
            entry["issue"].strip(),
        )
        for entry in data["release"]
    ]
    return Table(tuple(releases), tuple(Pin(*entry) for entry in data["tools"]))
