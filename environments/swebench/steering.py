"""Files that decide how tests run. An agent's changes to them never reach the verifier.

swebench 5.0.2 grades a patch that only adds a conftest.py with a reporting hook as resolved; test
files, runner settings, start-up hooks, plugin metadata and modules that shadow the test runner or
the standard library are the same hole. What code under test does inside pytest's own process cannot
be closed this way: mini's runner keeps it out of the process that judges.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from environments.swebench.instance import patched_files

_NAMES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("sitecustomize.py", "usercustomize.py", "tests.py", ".coveragerc", ".gitattributes"),
)
_GLOBS = ("*.pth", "test_*.py", "*_test.py")
_FOLDERS = ("test", "tests", "testing", "*.dist-info", "*.egg-info")
_RUNNER_MODULES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "xdist")
_SETTINGS = {"setup.cfg": r"(tool:)?pytest", "pyproject.toml": r"(tool\.)?pytest(\..*)?"}


def _patterns() -> tuple[str, ...]:
    """Globs in which * matches a slash too, as in fnmatch and in git apply --exclude."""
    anywhere = (*_NAMES, *_GLOBS, *(f"{folder}/*" for folder in _FOLDERS))
    shadows = sorted({*_RUNNER_MODULES, *sys.stdlib_module_names} - {"test"})
    modules = [form for name in shadows for form in (f"{name}.py", f"{name}/*")]
    # `python -m pytest` puts the repository's root first on the module path, PYTHONPATH=src its src
    rooted = (*modules, *(f"src/{module}" for module in modules))
    return (*anywhere, *(f"*/{pattern}" for pattern in anywhere), *rooted)


PATTERNS = _patterns()


def is_steering(path: str) -> bool:
    """True for a file whose name or place alone lets it steer a test run."""
    return any(fnmatchcase(path, pattern) for pattern in PATTERNS)


def steering_in(patch: str, allowed: Collection[str]) -> list[str]:
    """The steering paths that `patch` names, less those the gold patch itself changes."""
    return [p for p in patched_files(patch) if is_steering(p) and p not in allowed]


def drop_files(patch: str, paths: Iterable[str]) -> str:
    """`patch` without the sections that name any of `paths`: what an honest diff still says.

    This reads headers as git writes them. A diff may name files in other ways, so the verifier
    relies on `apply_command`, where git's own parser decides.
    """
    unwanted = set(paths)
    sections = re.split(r"(?m)^(?=diff --git )", patch)
    return "".join(s for s in sections if not unwanted & set(patched_files(s)))


def apply_command(patch_file: str, allowed: Collection[str]) -> str:
    """The git command that applies a diff and leaves out steering files, but for `allowed` ones."""
    options = [f"--include={_literal(path)}" for path in sorted(allowed)]
    options += [f"--exclude={pattern}" for pattern in PATTERNS]
    options.append("--include=*")  # with any --include, the rest is left out by default
    return f"git apply --whitespace=nowarn {shlex.join(options)} {shlex.quote(patch_file)}"


def _literal(path: str) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", path)


def may_change_settings(patch: str) -> bool:
    """True where a diff may touch a file with a test runner's section among others.

    Quoted names may hide anything in escapes, so they count as well.
    """
    quoted = re.search(r'(?m)^(diff --git |--- |\+\+\+ |rename |copy ).*"', patch)
    return quoted is not None or any(name in patch for name in _SETTINGS)


SETTINGS_FILES = tuple(_SETTINGS)  # pytest reads those of the root, where it is started


def runner_settings(path: str, text: str) -> str:
    """The test runner's sections of a setup.cfg or pyproject.toml, as text to compare."""
    wanted = re.compile(_SETTINGS[PurePosixPath(path).name])
    kept, inside = [], False
    for line in text.splitlines():
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if header:
            name = re.sub(r"""["'\s]""", "", header.group(1))
            inside = wanted.fullmatch(name) is not None
        # in TOML a section can also be written as a dotted or inline key
        if (inside or "pytest" in line) and line.strip():
            kept.append(line.rstrip())
    return "\n".join(kept)
