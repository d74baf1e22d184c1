#!/bin/bash
set -e
python3 - <<'EOF'
import json

good, bad = [], []
with open("/app/sensors.jsonl", encoding="utf-8") as file:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            fits = type(record["sensor"]) is str and type(record["t"]) is type(record["value"]) is int
        except (ValueError, KeyError):
            fits = False
        if fits:
            good.append(record)
        else:
            bad.append(number)
good.sort(key=lambda record: (record["sensor"], record["t"], record["value"]))
with open("/app/good.jsonl", "w", encoding="utf-8") as file:
    file.writelines(json.dumps(record) + "\n" for record in good)
with open("/app/bad.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{number}\n" for number in bad)
EOF
