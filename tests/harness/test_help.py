"""--help of every command that is no Hydra main."""

from __future__ import annotations

import importlib
import sys

import pytest

GUARDED = (
    "harness.evaluate",
    "harness.paired",
    "harness.policy.unpack",
    "harness.relearn",
    "harness.throughput",
    "thundersync.parity",
)


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("name", GUARDED)
def test_help_is_the_modules_docstring(name, flag, monkeypatch, capsys):
    module = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [name, "policy=nowhere", flag])
    assert module.main() == 0
    captured = capsys.readouterr()
    assert captured.out == f"{str(module.__doc__).strip()}\n"
    assert f"python -m {name}" in captured.out
    assert captured.out.isascii()
    assert captured.err == ""


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_the_images_needs_no_engine(flag, capsys):
    module = importlib.import_module("environments.swebench.images")
    assert module.main([flag]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{str(module.__doc__).strip()}\n"
    assert "python -m environments.swebench.images" in captured.out
    assert captured.out.isascii()
