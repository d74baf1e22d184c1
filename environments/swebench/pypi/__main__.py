"""Builds the data set: `python -m environments.swebench.pypi [data_dir=DIR] [sandbox=KIND]`.

`record=true` writes the manifest anew, after a change of the table.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from environments.protocols import InfrastructureError, UsageError
from environments.swebench.pypi.build import build

_KEYS = ("data_dir", "sandbox", "record")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 built (one JSON line on standard output), 2 usage error, 1 other failure,
    130 and 143 where SIGINT or SIGTERM ended it."""
    start = time.monotonic()
    # Also where a shell started this in the background and had SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        options = _options(arguments)
        record = options.get("record") == "true"
        sandbox: Any = options.get("sandbox", "auto")
        folder = build(options.get("data_dir"), sandbox=sandbox, record=record)
    except (UsageError, InfrastructureError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps({"data": str(folder), "seconds": round(time.monotonic() - start, 1)}))
    return 0


def _options(arguments: Sequence[str]) -> dict[str, str]:
    options = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in _KEYS or not equals:
            raise UsageError(f"{argument!r} is unknown; use {', '.join(f'{k}=' for k in _KEYS)}")
        options[key] = value
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
