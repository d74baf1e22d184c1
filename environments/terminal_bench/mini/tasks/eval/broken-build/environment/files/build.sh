#!/bin/bash
# Packs src/greet into one file that Python can run.
set -e
rm -r dist
mkdir dist/stage
cp -r source/greet dist/stage/greet
printf 'from greet.main import main\n\nmain()\n' >dist/stage/__main__.py
python3 -m zipapp dist/stage -o dist/greet.zip
rm -r dist/stage
