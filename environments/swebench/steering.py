"""Files that decide how tests run. An agent's changes to them never reach the verifier.

swebench 5.0.2 grades a patch that only adds a conftest.py with a reporting hook as resolved; test
files, runner settings, start-up hooks and modules that shadow the test runner are the same hole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from environments.swebench.instance import patched_files

_NAMES = frozenset(
    "conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml tox.ini noxfile.py "
    "sitecustomize.py usercustomize.py pytest.py py.test .coveragerc .gitattributes".split()
)
_TOP_FOLDERS = frozenset(("pytest", "_pytest", "pluggy", "pytest_asyncio", "xdist", "swebench"))
_TEST_FOLDERS = frozenset(("test", "tests", "testing"))
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|tests\.py")
_SECTIONS = {"setup.cfg": r"tool:pytest|pytest", "pyproject.toml": r"tool\.pytest.*|pytest.*"}


def is_steering(path: str) -> bool:
    """True for a file whose name or place alone lets it steer a test run (setup.cfg is not one)."""
    p = PurePosixPath(path)
    folders = p.parts[:-1]
    return (
        p.name in _NAMES
        or p.suffix == ".pth"
        or _TEST_FILE.fullmatch(p.name) is not None
        or any(folder in _TEST_FOLDERS for folder in folders)
        or bool(folders and folders[0] in _TOP_FOLDERS)
        or ".git" in p.parts
    )


def is_mixed(path: str) -> bool:
    """True for a file with a test runner's section among others (setup.cfg, pyproject.toml)."""
    return PurePosixPath(path).name in _SECTIONS


def steering_in(patch: str, allowed: Collection[str]) -> list[str]:
    """The steering paths that `patch` touches, less those the gold patch itself changes."""
    return [p for p in patched_files(patch) if is_steering(p) and p not in allowed]


def runner_settings(path: str, text: str) -> str:
    """The test runner's sections of a setup.cfg or pyproject.toml, as text to compare."""
    wanted = re.compile(_SECTIONS[PurePosixPath(path).name])
    kept, inside = [], False
    for line in text.splitlines():
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if header:
            inside = wanted.fullmatch(header.group(1).replace('"', "").replace(" ", "")) is not None
        if inside and line.strip():
            kept.append(line.rstrip())
    return "\n".join(kept)


def drop_files(patch: str, paths: Iterable[str]) -> str:
    """`patch` without the sections that touch any of `paths`."""
    unwanted = set(paths)
    sections = re.split(r"(?m)^(?=diff --git )", patch)
    kept = [s for s in sections if not unwanted & set(patched_files(s))]
    return "".join(kept)
