"""The doctor finds what is there, and says what to do about what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def _doctor(folder: Path, **environment: str) -> tuple[int, dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "harness.doctor"],
        cwd=folder, capture_output=True, text=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip
    (line,) = ended.stdout.splitlines()
    return ended.returncode, json.loads(line)


def test_without_docker_a_bubblewrap_sandbox_is_tried(tmp_path: Path) -> None:
    code, report = _doctor(tmp_path, DOCKER_HOST=f"unix://{tmp_path}/no-engine.sock")
    checks = {check["name"]: check for check in report["checks"]}
    assert not checks["docker"]["ok"]
    assert ".ci/docker.sh" in checks["docker"]["detail"]
    assert checks["sandbox"]["ok"]
    assert checks["sandbox"]["detail"].startswith("bubblewrap ran a command")
    assert checks["dataset mini"]["detail"].endswith("eval tasks")
    assert code == 0 and report["ok"]
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_read_is_reported_and_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("this is no database")
    code, report = _doctor(tmp_path, DOCKER_HOST=f"unix://{tmp_path}/no-engine.sock")
    checks = {check["name"]: check for check in report["checks"]}
    assert not checks["mlflow"]["ok"]
    assert checks["mlflow"]["fix"] == "use tracking=none"
    assert code == 0


def test_an_argument_is_a_usage_error(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "harness.doctor", "--no-such"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "unrecognized arguments: --no-such" in ended.stderr
