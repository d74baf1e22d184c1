#!/bin/sh
# Makes the repository; every date is fixed, so the same commits come out everywhere.
set -e
export GIT_AUTHOR_NAME=writer GIT_AUTHOR_EMAIL=writer@example.invalid
export GIT_COMMITTER_NAME=writer GIT_COMMITTER_EMAIL=writer@example.invalid
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git init -q -b main /app/notes
cd /app/notes
git config user.name agent
git config user.email agent@example.invalid
commit() { git add -A && git commit -q -m "$1"; }
printf 'buy rope\n' >plan.txt
printf 'hello\n' >readme.txt
commit 'first notes'
printf 'buy rope\npack the tent\n' >plan.txt
commit 'more plan'
printf 'buy rope\npack the tent\nleave at six\n' >plan.txt
printf 'hello again\n' >readme.txt
commit 'final plan'
git rm -q plan.txt
printf 'weather: dry\n' >weather.txt
commit 'tidy up'
printf 'hello at last\n' >readme.txt
commit 'greet'
