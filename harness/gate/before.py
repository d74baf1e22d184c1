"""The same ratios of the code that the reference was measured with: on another processor they are
others, and both codes are measured there, one after the other.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("baselines", "configs", "environments", "harness", "results", "thundersync")
_TIMEOUT_S = 1800.0


class NoSuchCode(Exception):
    """Why that commit's code cannot be measured here."""


def measure(
    commit: str | None, names: Sequence[str], say: Callable[[str], None]
) -> dict[str, float]:
    """Ratios of `names` that the code of `commit` has. Raises NoSuchCode."""
    with tempfile.TemporaryDirectory(prefix="harness-check-") as made:
        folder = Path(made)
        with tarfile.open(fileobj=io.BytesIO(_archive(commit))) as archive:
            archive.extractall(folder, filter="data")
        written = folder / "before.json"
        say(f"measuring the code of {str(commit)[:12]} on this machine")
        done = subprocess.run(
            [
                sys.executable, "-m", "harness.check", "--update", f"only={','.join(names)}",
                f"reference={written}",
            ],
            cwd=folder, env=os.environ | {"PYTHONPATH": made},
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoSuchCode(f"the code of {commit} ends with {done.stderr.strip()[-300:]!r}")
        figures = json.loads(written.read_text(encoding="utf-8"))["figures"]
    return {name: figures[name]["value"] for name in names if name in figures}


def _archive(commit: str | None) -> bytes:
    if commit is None:
        raise NoSuchCode("the reference does not say which commit its ratios are of")
    where = _git("rev-parse", "--show-toplevel")
    if where.returncode != 0 or Path(where.stdout.decode().strip()) != ROOT:
        raise NoSuchCode(f"{ROOT} is no git clone")
    found = _git("archive", "--format=tar", commit, *PACKAGES)
    if found.returncode != 0:
        raise NoSuchCode(f"this clone does not have commit {commit}")
    return found.stdout


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, check=False
        )
    except OSError as error:
        raise NoSuchCode(f"git: {error}") from error
