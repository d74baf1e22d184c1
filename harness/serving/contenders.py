"""The engines of a comparison, each in a process of its own with one thread."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from harness.cluster import memory
from harness.protocols import InfrastructureError
from harness.serving import vllm_peer
from harness.serving.play import Round
from harness.serving.setting import Setting

TARGETS = {
    "torch": "harness.serving.ours:Ours",
    "generate": "harness.serving.generate:Generate",
    "continuous": "harness.serving.continuous:Continuous",
    "vllm": "harness.serving.vllm_peer:Vllm",
    "vllm_compiled": "harness.serving.vllm_peer:VllmCompiled",
    "vllm_for_training": "harness.serving.vllm_peer:VllmForTraining",
}
_ROOT = Path(__file__).parents[2]
_TAIL = 12  # lines of what a process said last


def needs_vllm(name: str) -> bool:
    return TARGETS[name].startswith(vllm_peer.__name__)


class Contender:
    """Started by entering it: ready, and not warm. Whatever happens inside, it has ended after."""

    def __init__(self, name: str, setting: Setting, python: str) -> None:
        self.name, self._setting, self._python = name, setting, python

    def __enter__(self) -> Self:
        env = (
            os.environ
            | memory.ENVIRONMENT
            | {"PYTHONPATH": str(_ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
        )
        for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            env[key] = "1"
        if needs_vllm(self.name):
            env |= vllm_peer.ENVIRONMENT
        self._said = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [
                self._python, "-m", "harness.serving.worker",
                json.dumps([TARGETS[self.name], asdict(self._setting)]),
            ],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def round(self, requests: Mapping[str, Any]) -> Round:
        """Play what `requests.make` makes of these. Raises InfrastructureError, with the
        process's last words, where it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer will be missing, too
            print(json.dumps(requests), file=self._process.stdin, flush=True)
        return Round(**self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        words = "".join(self._said.readlines()[-_TAIL:])
        code = self._process.returncode
        raise InfrastructureError("start", f"{self.name}: ended (exit code {code})\n{words}")

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


def interpreter(name: str, vllm_python: str) -> str:
    return vllm_python if needs_vllm(name) else sys.executable
