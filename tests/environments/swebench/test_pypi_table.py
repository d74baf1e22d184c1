"""The pypi data set's table, manifest and diffs: nothing here needs a network or a sandbox."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from environments.protocols import UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.pypi.diff import tree_diff
from environments.swebench.pypi.releases import read_table
from environments.swebench.pypi.source import built_folder, read_manifest

# fail-to-pass and pass-to-pass of the published table
COUNTS = {
    "tomlkit": (10, 270),
    "pathspec": (1, 118),
    "wcwidth": (2, 36),
    "xmltodict": (4, 56),
    "humanize": (2, 610),
    "sqlparse": (8, 378),
}


def test_table_and_manifest_agree_on_the_published_counts() -> None:
    table = read_table()
    manifest = read_manifest()["instances"]
    assert {r.project: (r.fail_to_pass, r.pass_to_pass) for r in table.releases} == COUNTS
    assert list(manifest) == [r.instance_id for r in table.releases]
    for release in table.releases:
        entry = manifest[release.instance_id]
        assert (entry["fail_to_pass"], entry["pass_to_pass"]) == COUNTS[release.project]


def test_every_file_is_pinned_once() -> None:
    table = read_table()
    pins = [pin for r in table.releases for pin in (r.buggy, r.fixed)] + list(table.tools)
    hashes = [pin.sha256 for pin in pins]
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in hashes)
    assert len(set(hashes)) == len(hashes) == 19


def test_issues_are_written_and_do_not_name_the_fixed_release() -> None:
    for release in read_table().releases:
        assert len(release.issue) > 100, release.project
        assert release.fixed.version not in release.issue, release.project


@pytest.mark.parametrize("message", ["there is no data set", "is damaged"])
def test_missing_or_damaged_data_is_one_line_that_names_the_command(
    tmp_path: Path, message: str
) -> None:
    if message == "is damaged":
        folder = built_folder(str(tmp_path), read_manifest())
        folder.mkdir()
        (folder / "instances.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=message) as raised:
        SweBench(SweBenchConfig(dataset="pypi", data_dir=str(tmp_path)))
    line = str(raised.value)
    assert "\n" not in line
    assert line.endswith(f"python -m environments.swebench.pypi data_dir={tmp_path}")


def test_git_makes_the_new_tree_of_the_old_one_and_a_diff(tmp_path: Path) -> None:
    before = {
        "a/changed.py": b"one\ntwo\x0cstill two\nthree\n",
        "a/end.py": b"x = 1\ny = 2",
        "a/carriage.py": b"x = 1\r\ny = 2\r\n",
        "gone.py": b"old\n",
        "same.py": b"same\n",
    }
    after = {
        "a/changed.py": "one\nzwei\x0cstill two ü\u2028\nthree\n".encode(),
        "a/end.py": b"x = 1\ny = 3\n",
        "a/carriage.py": b"x = 1\r\ny = 3\r\n",
        "b/empty.py": b"",
        "b/new.py": b"no line end",
        "same.py": b"same\n",
    }
    for path, content in before.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    patch = tree_diff(before, after)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, check=True, input=patch.encode())
    found = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*.py")
        if path.is_file()
    }
    assert found == after
    assert "same.py" not in patch
