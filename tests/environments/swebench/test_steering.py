"""What is taken out of an agent's diff, and what is left in."""

from __future__ import annotations

import pytest

from environments.swebench.steering import (
    apply_command,
    drop_files,
    is_steering,
    needs_restoring,
    runner_settings,
    steering_in,
)


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "a/b/conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "pytest.toml"),
        *("sitecustomize.py", "src/usercustomize.py", "x.pth", "a/b.pth", ".gitattributes"),
        *("tests/test_a.py", "tests/data/x.json", "pkg/testing/y.py", "test_top.py", "a/b_test.py"),
        *("pytest.py", "_pytest/runner.py", "pluggy/__init__.py", "json.py", "src/json/a.py"),
        *("evil-1.dist-info/entry_points.txt", "src/evil.egg-info/entry_points.txt"),
    ],
)
def test_steering(path: str) -> None:
    assert is_steering(path)


@pytest.mark.parametrize(
    "path",
    [
        *("shop/core.py", "src/humanize/time.py", "pkg/json.py", "setup.py", "README.md"),
        *("pkg/contest.py", "pkg/latest.py", "pkg/attest.txt", "docs/conftest.rst", "setup.cfg"),
    ],
)
def test_source(path: str) -> None:
    assert not is_steering(path)


def section(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"


def test_only_steering_sections_are_dropped() -> None:
    patch = section("shop/core.py") + section("conftest.py") + section("tests/test_a.py")
    found = steering_in(patch, ())
    assert found == ["conftest.py", "tests/test_a.py"]
    assert drop_files(patch, found) == section("shop/core.py")


def test_what_the_gold_patch_changes_is_allowed() -> None:
    patch = section("pkg/testing/y.py")
    assert steering_in(patch, {"pkg/testing/y.py"}) == []
    command = apply_command("p.diff", {"pkg/testing/y.py"})
    assert command.index("--include=pkg/testing/y.py") < command.index("--exclude=")
    assert command.endswith("p.diff")


def test_settings_files_are_looked_at_whatever_hides_them() -> None:
    assert needs_restoring(section("setup.cfg"))
    assert needs_restoring('--- "a/pypro\\152ect.toml"\n')
    assert not needs_restoring(section("shop/core.py"))


def test_only_the_runner_section_counts() -> None:
    before = (
        "[project]\nname = 'a'\n[tool.pytest.ini_options]\naddopts = '-q'\n[tool.ruff]\nx = 1\n"
    )
    other = before.replace("x = 1", "x = 2").replace("'a'", "'b'")
    assert runner_settings("pyproject.toml", before) == runner_settings("pyproject.toml", other)
    for changed in (
        before.replace("-q", "-p evil"),
        before + "[tool.pytest]\nplugins = 1\n",
        before + "[[tool.'pytest'.x]]\ny = 1\n",
        'tool.pytest.ini_options.addopts = "-p evil"\n' + before,
        before.replace("[tool.ruff]", '[tool]\npytest = {ini_options = {addopts = "-p evil"}}'),
    ):
        assert runner_settings("pyproject.toml", changed) != runner_settings(
            "pyproject.toml", before
        )
    plain = "[metadata]\nname = a\n"
    assert runner_settings("setup.cfg", plain) == ""
    assert "-p evil" in runner_settings("setup.cfg", plain + "[tool:pytest]\naddopts = -p evil\n")
