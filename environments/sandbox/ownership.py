"""Who made a container, a volume, a network or a folder, and whether that harness is gone.

An owner is named by boot, process-id namespace, process id and start time, so that no process that
happens to have the same id is mistaken for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from environments.sandbox.cgroups import process_start

LABEL = "thundersync."
OWNER_LABEL = f"{LABEL}pid_start"  # on everything that an owner's end makes an orphan
IMAGE_LABEL = f"{LABEL}image"  # on images built for a data set: they stay for the next run
_SANDBOXES = "bwrap"


def owner_labels() -> dict[str, str]:
    """Labels that name this process."""
    return {
        f"{LABEL}pid": str(os.getpid()),
        OWNER_LABEL: str(process_start(os.getpid())),
        f"{LABEL}pid_namespace": os.readlink("/proc/self/ns/pid"),
        f"{LABEL}boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


def is_orphan(labels: Mapping[str, str], *, ended: bool) -> bool:
    """Whether the owner is certainly gone. `ended`: the thing itself can serve nobody any more,
    which has to do where the owner was on another machine or in another container."""
    own = owner_labels()
    here = all(labels.get(key) == own[key] for key in (f"{LABEL}boot", f"{LABEL}pid_namespace"))
    if not here:
        return ended
    return str(process_start(int(labels[f"{LABEL}pid"]))) != labels[OWNER_LABEL]


def folder_prefix(kind: str = _SANDBOXES) -> str:
    """Of this process's temporary folders."""
    return f"thundersync-{kind}.{os.getpid()}.{process_start(os.getpid())}."


def reap_folders(kind: str = _SANDBOXES, at: Path | None = None) -> int:
    """Remove the temporary folders of processes that are gone; returns how many."""
    removed = 0
    for path in (at or Path(tempfile.gettempdir())).glob(f"thundersync-{kind}.*"):
        pid, start = path.name.split(".")[1:3]
        if process_start(int(pid)) != int(start):
            shutil.rmtree(path, ignore_errors=True)
            removed += not path.exists()
    return removed
