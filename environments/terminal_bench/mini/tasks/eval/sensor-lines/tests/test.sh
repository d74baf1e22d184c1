#!/bin/bash
# Reward 1 where every check of test_state.py holds, else 0.
cd /tests || exit 1
if python3 -I -B /tests/test_state.py 2>&1; then reward=1; else reward=0; fi
# What the checks have started must be gone before the reward is written.
for _ in {1..200}; do kill -KILL -1 2>/dev/null || break; done
echo "$reward" >/logs/verifier/reward.txt
