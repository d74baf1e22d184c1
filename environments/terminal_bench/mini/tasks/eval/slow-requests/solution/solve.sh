#!/bin/bash
set -e
python3 - <<'EOF'
import re

seen = {}
with open("/app/server.log", encoding="utf-8") as file:
    for line in file:
        found = re.search(r"INFO GET ([^ ?]+)\S* -> (\d+) in (\d+) ms", line)
        if found:
            seen.setdefault(found[1], []).append((int(found[2]), int(found[3])))
rows = [
    (path, len(requests), sum(status >= 500 for status, _ in requests), max(ms for _, ms in requests))
    for path, requests in seen.items()
]
with open("/app/summary.txt", "w", encoding="utf-8") as file:
    for row in sorted(rows, key=lambda row: (-row[2], row[0])):
        print(*row, file=file)
EOF
