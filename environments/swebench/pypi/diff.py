"""Git diffs between two trees, in pure Python: the same text with every version of git, or none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping


def tree_diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """A git diff of UTF-8 files (path -> content): changed, new and deleted ones."""
    parts = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        parts.append(f"diff --git a/{path} b/{path}\n")
        if old is None:
            parts.append(f"new file mode {_mode(new)}\n")
        elif new is None:
            parts.append(f"deleted file mode {_mode(old)}\n")
        lines = difflib.unified_diff(
            _lines(old),
            _lines(new),
            "/dev/null" if old is None else f"a/{path}",
            "/dev/null" if new is None else f"b/{path}",
        )
        for line in lines:
            whole = line.endswith("\n")
            parts.append(line if whole else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def _mode(content: bytes | None) -> str:
    return "100755" if content is not None and content.startswith(b"#!") else "100644"


def _lines(content: bytes | None) -> list[str]:
    # str.splitlines also splits at form feeds and other characters that are no line end to git
    return re.findall(r"[^\n]*\n|[^\n]+", (content or b"").decode("utf-8"))
