#!/bin/bash
set -e
cd /app
sed -i 's|^rm -r dist$|rm -rf dist|; s|^mkdir dist/stage|mkdir -p dist/stage|' build.sh
sed -i 's|source/greet|src/greet|; s|greet.zip|greet.pyz|' build.sh
sed -i 's|sys.argv$|sys.argv[1:]|; s|print(hello(name)$|print(hello(name))|' src/greet/main.py
sed -i 's|{name}[.]"|{name}!"|' src/greet/words.py
