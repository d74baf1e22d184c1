"""The repository written without git is one that git accepts."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from environments.swebench.gitrepo import build_repository

FILES = {
    "a.py": b"x = 1\n",
    "pkg.py": b"",
    "pkg/core.py": b"y = 2\n",
    "pkg/deep/er/z.bin": bytes(range(256)),
    "run": b"#!/bin/sh\n",
    "ümlaut.txt": b"caf\xc3\xa9\n",
}


def unpack(folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(build_repository(FILES).tar)) as archive:
        archive.extractall(folder, filter="data")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "core.quotepath=false", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_git_finds_no_fault(tmp_path: Path) -> None:
    unpack(tmp_path)
    git(tmp_path, "fsck", "--strict", "--full")
    assert git(tmp_path, "status", "--porcelain") == ""
    assert git(tmp_path, "rev-parse", "HEAD").strip() == build_repository(FILES).commit
    assert sorted(git(tmp_path, "ls-files").split()) == sorted(FILES)
    assert git(tmp_path, "ls-files", "-s", "run").startswith("100755")


def test_git_computes_the_same_commit(tmp_path: Path) -> None:
    unpack(tmp_path)
    git(tmp_path, "rm", "-rq", "--cached", ".")
    git(tmp_path, "add", "-A")
    tree = git(tmp_path, "write-tree").strip()
    assert tree == git(tmp_path, "rev-parse", "HEAD^{tree}").strip()


def test_nothing_but_the_base_commit_is_in_it(tmp_path: Path) -> None:
    unpack(tmp_path)
    objects = git(tmp_path, "cat-file", "--batch-all-objects", "--batch-check")
    assert sum(" commit " in line for line in objects.splitlines()) == 1
    assert git(tmp_path, "for-each-ref").count("\n") == 1


def test_an_edit_of_the_same_size_is_seen_and_can_be_taken_back(tmp_path: Path) -> None:
    unpack(tmp_path)
    (tmp_path / "a.py").write_bytes(b"x = 2\n")
    assert "+x = 2" in git(tmp_path, "diff")
    git(tmp_path, "checkout", "a.py")
    assert (tmp_path / "a.py").read_bytes() == FILES["a.py"]
    (tmp_path / "a.py").write_bytes(b"x = 3\n")  # within the same second as the checkout
    assert "+x = 3" in git(tmp_path, "diff")


def test_bytes_follow_from_the_files_alone() -> None:
    backwards = dict(reversed(FILES.items()))
    assert build_repository(FILES).tar == build_repository(backwards).tar
    changed = FILES | {"a.py": b"x = 9\n"}
    assert build_repository(FILES).commit != build_repository(changed).commit
