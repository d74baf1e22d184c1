"""Who made a container, a volume, a network or a folder, and whether that harness is gone.

An owner is named by boot, process-id namespace, process id and start time, so that no process that
happens to have the same id is mistaken for it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from environments.sandbox.cgroups import process_start

LABEL = "thundersync."
OWNER_LABEL = f"{LABEL}pid_start"  # on everything that an owner's end makes an orphan
IMAGE_LABEL = f"{LABEL}image"  # on images built for a data set: they stay for the next run
_FOLDER = re.compile(r"thundersync-[a-z]+\.(\d+)\.(\d+)(\.|$)")  # of which kind and owner


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


def folder_prefix(kind: str) -> str:
    """Of this process's temporary folders of a kind, which is a word in small letters. A folder
    that there is one of may be called so without the last dot."""
    return f"thundersync-{kind}.{os.getpid()}.{process_start(os.getpid())}."


def reap_folders(at: Path | None = None) -> int:
    """Remove the temporary folders of processes that are gone, of every kind; returns how many.
    `at` is where they are, if not in the folder for temporary files."""
    removed = 0
    for path in (at or Path(tempfile.gettempdir())).glob("thundersync-*"):
        owner = _FOLDER.match(path.name)
        if owner is not None and process_start(int(owner[1])) != int(owner[2]):
            shutil.rmtree(path, ignore_errors=True)
            removed += not path.exists()
    return removed
