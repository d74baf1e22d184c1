#!/bin/bash
set -e
cd /app/work
find . -type f -name '*.tmp' -delete
find . -type f -empty -delete
find . -mindepth 1 -type d -empty -delete
find . -type f -printf '%P\n' | LC_ALL=C sort >/app/left.txt
