"""Files that decide how tests run. An agent's changes to them never reach the verifier.

swebench 5.0.2 grades a patch that only adds a conftest.py with a reporting hook as resolved; test
files, runner settings, start-up hooks, plugin metadata and modules that shadow the test runner or
the standard library are the same hole. What code under test does inside pytest's own process cannot
be closed this way: mini's runner keeps it out of the process that judges, decoy.py distrusts it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from environments.swebench.instance import patched_files

# kind -> file names, globs and folders, anywhere in the repository
_ANYWHERE: dict[str, tuple[str, ...]] = {
    "test_files": (
        *("tests.py", "test_*.py", "*_test.py", "test/*", "tests/*", "testing/*"),
        *("test", "tests", "testing"),  # a link in the folder's place
    ),
    "runner_settings": (
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
        ".coveragerc",
    ),
    "start_up_hooks": (
        *("sitecustomize.py", "usercustomize.py", "*.pth", "*.dist-info/*", "*.egg-info/*"),
    ),
    "caches": ("*.pyc", "__pycache__/*", ".pytest_cache/*"),
    "git_internals": (".gitattributes", ".git/*", ".git"),
}
_RUNNER_MODULES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "xdist")
_SETTINGS = {"setup.cfg": r"(tool:)?pytest", "pyproject.toml": r"(tool\.)?pytest(\..*)?"}


def _shadows() -> tuple[str, ...]:
    modules = sorted({*_RUNNER_MODULES, *sys.stdlib_module_names} - {"test"})
    forms = [form for name in modules for form in (f"{name}.py", f"{name}/*")]
    # `python -m pytest` puts the repository's root first on the module path, PYTHONPATH=src its src
    return (*forms, *(f"src/{form}" for form in forms))


# kind -> globs in which * matches a slash too, as in fnmatch and in git apply --exclude
PATTERNS: dict[str, tuple[str, ...]] = {
    kind: (*globs, *(f"*/{glob}" for glob in globs)) for kind, globs in _ANYWHERE.items()
} | {"shadowed_modules": _shadows()}


def _patterns(allowed: Collection[str]) -> dict[str, tuple[str, ...]]:
    """PATTERNS without shadows where the gold patch works: there the module is the project's own,
    as src/_pytest is pytest's."""
    own = set(allowed)
    for path in allowed:
        first, *rest = path.split("/")
        own |= {f"{first}/*", f"{first}/{rest[0]}/*"} if len(rest) > 1 else {f"{first}/*"}
    shadows = tuple(p for p in PATTERNS["shadowed_modules"] if p not in own)
    return PATTERNS | {"shadowed_modules": shadows}


def steering_kind(path: str, allowed: Collection[str] = ()) -> str | None:
    """How a file of that name could steer a test run; None where it could not, or is `allowed`."""
    if path in allowed:
        return None
    if path in _SETTINGS:
        return "runner_settings"
    for kind, globs in _patterns(allowed).items():
        if any(fnmatchcase(path, glob) for glob in globs):
            return kind
    return None


def is_steering(path: str, allowed: Collection[str] = ()) -> bool:
    """True for a file whose name or place alone lets it steer a test run."""
    return path not in _SETTINGS and steering_kind(path, allowed) is not None


def steering_in(patch: str, allowed: Collection[str]) -> list[str]:
    """The steering paths that `patch` names, less those the gold patch itself changes."""
    return [path for path in patched_files(patch) if is_steering(path, allowed)]


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
    options += [f"--exclude={glob}" for globs in _patterns(allowed).values() for glob in globs]
    options.append("--include=*")  # with any --include, the rest is left out by default
    return f"git apply --whitespace=nowarn {shlex.join(options)} {shlex.quote(patch_file)}"


def _literal(path: str) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", path)


def needs_restoring(patch: str) -> bool:
    """True where a diff may reach a steering file that its application does not leave out: a file
    with a test runner's section among others, or the old name of a renamed file.

    Quoted names may hide anything in escapes, so they count as well.
    """
    quoted = re.search(r'(?m)^(diff --git |--- |\+\+\+ |rename |copy ).*"', patch)
    moved = re.search(r"(?m)^rename from ", patch)
    return bool(quoted or moved) or any(name in patch for name in _SETTINGS)


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
