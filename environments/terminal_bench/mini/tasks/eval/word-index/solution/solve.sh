#!/bin/bash
set -e
python3 - <<'EOF'
import pathlib
import re

index = {}
for page in pathlib.Path("/app/pages").glob("*.txt"):
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for word in re.findall("[a-z]+", line.lower()):
            if len(word) >= 4:
                index.setdefault(word, set()).add(f"{page.name}:{number}")
with open("/app/index.txt", "w", encoding="utf-8") as file:
    for word, places in sorted(index.items()):
        if len(places) >= 2:
            print(f"{word}: {', '.join(sorted(places))}", file=file)
EOF
