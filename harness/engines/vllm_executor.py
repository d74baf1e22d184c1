"""vLLM's executors, whose processes meet through a file: it lies beside their sockets, and goes
with them (harness.engines.vllm_files)."""

from __future__ import annotations

import os
import tempfile

from vllm.v1.executor.multiproc_executor import (  # pyright: ignore[reportMissingImports]
    MultiprocExecutor,
)
from vllm.v1.executor.uniproc_executor import (  # pyright: ignore[reportMissingImports]
    UniProcExecutor,
)

from harness.engines.vllm_files import VARIABLE


class OneProcess(UniProcExecutor):
    """The model is in EngineCore."""

    def _init_executor(self) -> None:
        tempfile.tempdir = os.environ[VARIABLE]
        super()._init_executor()


class SeveralProcesses(MultiprocExecutor):
    """Parts of the model are in processes below EngineCore."""

    def _init_executor(self) -> None:
        tempfile.tempdir = os.environ[VARIABLE]
        super()._init_executor()
