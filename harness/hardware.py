"""What machine this is, in words and in a record. Torch-free."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(errors="replace"), re.M)
        if match:
            return " ".join(match.group(1).replace("(R)", "").replace("(TM)", "").split())
    return platform.processor() or platform.machine()


def cpu_revision() -> str:
    """Which of the processors of one name this is: family, model and stepping; empty where the
    system does not tell. A cloud's machines share a name over several generations."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(errors="replace") if info.exists() else ""
    keys = ("cpu family", "model", "stepping")
    found = [re.search(rf"^{key}\s*:\s*(\d+)$", text, re.M) for key in keys]
    numbers = [match.group(1) for match in found if match]
    return "{} model {} stepping {}".format(*numbers) if len(numbers) == 3 else ""


@functools.cache
def gpus() -> tuple[str, ...]:
    """The names that nvidia-smi gives; none where there is no such tool."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in found.stdout.splitlines() if line.strip())


def gpu_count() -> int:
    """GPUs that this machine shows, to nvidia-smi or as devices: a container may lack that tool."""
    devices = [p for p in Path("/dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()]
    return max(len(gpus()), len(devices))


def hardware_label() -> str:
    """One label for a table row: where the work ran. This version computes on the CPU."""
    return f"cpu, {cores()} cores, {cpu_model()}"


def memory_bytes() -> int:
    import psutil

    return psutil.virtual_memory().total


def available_bytes() -> int:
    """Memory that a process could still take without pushing another's out."""
    import psutil

    return psutil.virtual_memory().available


def describe() -> dict[str, Any]:
    return {
        "label": hardware_label(),
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "gpus": list(gpus()),
        "system": platform.platform(),
        "host": platform.node(),
    }
