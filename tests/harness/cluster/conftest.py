"""Services in modules of their own, which a worker process loads by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a module that this process and its children find; the file that its service may log
    to."""

    def write(name: str, text: str) -> Path:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path / "log"

    return write
