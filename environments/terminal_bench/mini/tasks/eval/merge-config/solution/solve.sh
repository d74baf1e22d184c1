#!/bin/bash
set -e
python3 - <<'EOF'
import configparser
import json
import re

parser = configparser.ConfigParser()
parser.read("/app/defaults.ini", encoding="utf-8")
merged = {name.lower(): dict(parser[name]) for name in parser.sections()}
with open("/app/site.json", encoding="utf-8") as file:
    for name, section in json.load(file).items():
        for key, value in section.items():
            merged.setdefault(name.lower(), {})[key.lower()] = value
with open("/app/run.env", encoding="utf-8") as file:
    for line in file:
        found = re.match(r"APP_(\w+?)__(\w+)=(.*)", line)
        if found:
            name, key, value = found[1].lower(), found[2].lower(), found[3].strip()
            if value[:1] in "'\"" and value[:1] == value[-1:]:
                value = value[1:-1]
            merged.setdefault(name, {})[key] = value
texts = {
    name: {k: v if isinstance(v, str) else json.dumps(v) for k, v in section.items() if v is not None}
    for name, section in merged.items()
}
with open("/app/merged.json", "w", encoding="utf-8") as file:
    json.dump({name: section for name, section in texts.items() if section}, file)
EOF
