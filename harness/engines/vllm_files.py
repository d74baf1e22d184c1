"""A folder for the sockets and files of vLLM's processes, which leave them where they lie."""

from __future__ import annotations

import tempfile
from pathlib import Path

from environments.sandbox.ownership import folder_prefix, reap_folders

VARIABLE = "VLLM_RPC_BASE_PATH"  # where vLLM opens its sockets
_LONGEST = 25  # characters of the folder around it: a socket's whole path has 107


def make_folder() -> Path:
    """This process's; those of processes that are gone are removed."""
    at = tempfile.gettempdir()
    around = Path(at if len(at) <= _LONGEST else "/tmp")
    reap_folders(around)
    return Path(tempfile.mkdtemp(prefix=folder_prefix("vllm"), dir=around))
