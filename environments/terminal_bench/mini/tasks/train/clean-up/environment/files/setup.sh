#!/bin/sh
set -e
mkdir -p /app/work/a/b/c /app/work/d /app/work/e
cd /app/work
printf 'keep\n' >a/keep.txt
printf 'keep\n' >'a/b/keep me.tmp.txt'
printf 'old\n' >a/b/c/old.tmp
printf 'old\n' >top.tmp
: >d/empty
: >e/empty.txt
printf 'x\n' >e/x
