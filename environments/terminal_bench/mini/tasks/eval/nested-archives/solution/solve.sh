#!/bin/bash
set -e
mkdir -p /app/bills
python3 - <<'EOF'
import gzip
import io
import pathlib
import tarfile
import zipfile


def walk(name, content):
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                if member.isfile():
                    walk(member.name, archive.extractfile(member).read())
    elif name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                walk(member, archive.read(member))
    elif name.endswith(".gz"):
        walk(name.removesuffix(".gz"), gzip.decompress(content))
    elif name.endswith(".bill"):
        bills[pathlib.PurePath(name).name] = content


bills = {}
walk("inbox.tar.gz", pathlib.Path("/app/inbox.tar.gz").read_bytes())
for name, content in bills.items():
    pathlib.Path("/app/bills", name).write_bytes(content)
total = sum(int(content.split()[1]) for content in bills.values())
pathlib.Path("/app/total.txt").write_text(f"{total}\n")
EOF
