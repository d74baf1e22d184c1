"""Do the tests of exactness notice? Breaks the mathematics one character at a time.

    python tests/mutation/mutants.py [NAME…]

Each mutant is the repository with one small fault in a copy of its own; the tests of the objective,
the ledger and the streamed update run against it until one fails. Prints a line per mutant and the
score; exit 1 unless every mutant is found. The unchanged copy goes first and must pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("baselines", "configs", "environments", "harness", "results", "tests", "thundersync")
# Fast ones first: most mutants are found within seconds.
TESTS = (
    "tests/harness/test_training.py",
    "tests/harness/learner/test_step.py",
    "tests/thundersync/test_ledger.py",
    "tests/thundersync/test_turn_rung.py",
    "tests/harness/learner/test_turns.py",
    "tests/harness/objectives",
    "tests/thundersync/test_parity.py",
)
LIMIT_S = 900


@dataclass(frozen=True)
class Mutant:
    """`old` occurs once in `file`; `new` is the fault."""

    name: str
    file: str
    old: str
    new: str


ESTIMATORS = "harness/objectives/estimators.py"
GRPO = "harness/objectives/grpo.py"
IMPORTANCE = "harness/learner/importance.py"
SCORING = "harness/learner/scoring.py"
LEARNER = "harness/learner/torch_learner.py"
LEDGER = "thundersync/ledger.py"
STREAM = "thundersync/stream.py"
TURNS = "harness/learner/turns.py"
HAND = "thundersync/hand.py"

MUTANTS = (
    Mutant("mean term", ESTIMATORS, "return [r - centre for", "return [r + centre for"),
    Mutant("std power", ESTIMATORS, "(v - centre) ** 2", "(v - centre) ** 4"),
    Mutant("std divides", ESTIMATORS, "(v - centre) ** 2 for v in values) /",
           "(v - centre) ** 2 for v in values) *"),
    Mutant("population becomes sample", ESTIMATORS, "lost_degrees: int = 0",
           "lost_degrees: int = 1"),
    Mutant("sample becomes population", ESTIMATORS, "lost_degrees=1)", "lost_degrees=0)"),
    Mutant("epsilon", ESTIMATORS, "deviation(rewards_G) + epsilon",
           "deviation(rewards_G) - epsilon"),
    Mutant("leave-one-out factor", ESTIMATORS, "(len(rewards_G) - 1)", "(len(rewards_G) - 2)"),
    Mutant("leave-one-out itself", ESTIMATORS, "*rewards_G[i + 1 :]", "*rewards_G[i + 0 :]"),
    Mutant("token weight", ESTIMATORS, "1.0 / max(1, length)", "2.0 / max(1, length)"),
    Mutant("normaliser of token_mean", ESTIMATORS,
           "lambda length: 1.0, lambda tokens, sequences, constant: tokens)",
           "lambda length: 1.0, lambda tokens, sequences, constant: sequences)"),
    Mutant("normaliser of constant", ESTIMATORS, "sequences * constant", "sequences / constant"),
    Mutant("zero-variance drop", GRPO, "max(rewards_G) == min(rewards_G)",
           "max(rewards_G) != min(rewards_G)"),
    Mutant("zero-variance drop missing", GRPO, "if small or max(", "if small and max("),
    Mutant("degenerate groups leave Z", GRPO, "if self._filters else groups",
           "if not self._filters else groups"),
    Mutant("mask shifted", SCORING, "[m[1:] for m in masks]", "[m[:-1] for m in masks]"),
    Mutant("targets shifted", SCORING, "t[1:][p] for t, p", "t[:-1][p] for t, p"),
    Mutant("temperature", SCORING, "(self._dtype)) / self._temperature",
           "(self._dtype)) * self._temperature"),
    Mutant("KL sign", SCORING, "always - self._kl", "always + self._kl"),
    Mutant("k2 factor", SCORING, "0.5 * (logprobs_N", "0.6 * (logprobs_N"),
    Mutant("k3 direction", SCORING, "(reference_N - logprobs_N).clamp",
           "(logprobs_N - reference_N).clamp"),
    Mutant("entropy sign", SCORING, "always + self._entropy", "always - self._entropy"),
    Mutant("mask of importance", IMPORTANCE, "(ratio_N < low)", "(ratio_N > low)"),
    Mutant("direction of the step", LEARNER, "assign(update, -normaliser)",
           "assign(update, +normaliser)"),
    Mutant("shift constant", LEDGER, "shifted = reward - group.centre",
           "shifted = reward + group.centre"),
    Mutant("slope", LEDGER, "(advantage[high] - advantage[low])",
           "(advantage[high] + advantage[low])"),
    Mutant("late ones are left out", STREAM, "k not in captured", "k in captured"),
    Mutant("turns run twice", TURNS, "max(start, running.fed)", "min(start, running.fed)"),
    Mutant("turns without a weight", TURNS, "if weight != 1.0", "if weight == 1.0"),
    Mutant("a later sequence's tokens", TURNS, "before = sum(row.action_mask_T[:start])",
           "before = sum(row.action_mask_T[:end])"),
    Mutant("a sequence before its scores", TURNS, "if scored < sum(", "if scored > sum("),
    Mutant("lost turns stay in the learner", HAND, "elif trajectory.trajectory_id in self.begun:",
           "elif trajectory.trajectory_id not in self.begun:"),
)  # fmt: skip


def copy_repository(folder: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")


def tests_fail(folder: Path) -> str | None:
    """The first test that fails in the copy; None where all pass."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
            "-m", "not slow and not docker", *TESTS,
        ],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return None
    failed = [
        line.removeprefix("FAILED ").removeprefix("ERROR ").split(" - ")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if not failed:
        raise RuntimeError(f"pytest did not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return failed[0]


def apply(mutant: Mutant, folder: Path) -> None:
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants to run; all of them by default")
    names = parser.parse_args().names
    chosen = [m for m in MUTANTS if not names or m.name in names]
    with tempfile.TemporaryDirectory(prefix="thundersync-mutants-") as scratch:
        folder = Path(scratch) / "repository"
        folder.mkdir()
        copy_repository(folder)
        failed = tests_fail(folder)
        if failed is not None:
            print(f"the unchanged repository fails: {failed}")
            return 1
        survived = 0
        for mutant in chosen:
            original = (folder / mutant.file).read_text(encoding="utf-8")
            apply(mutant, folder)
            started_s = time.monotonic()
            found = tests_fail(folder)
            (folder / mutant.file).write_text(original, encoding="utf-8")
            survived += found is None
            seconds = time.monotonic() - started_s
            print(f"{mutant.name:<28}{found or 'SURVIVED'} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
