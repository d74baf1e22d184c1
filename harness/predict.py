"""Published figures beside what the simulator says of them.

    python -m harness.predict published=results/reference/published.json out=FOLDER [only=PREFIX]

Runs the cases below in virtual time and writes predictions.md and
predictions.json into FOLDER. `given` is what of a row's circumstances, or of its own figures, the
model was told; no figure in the `published` column was, but for the rows `fitted`, from which the
rows after them take two constants. All others are those of the presets (docs/cost_model.md), fixed
before a row is run: a miss is a result.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import entry
from harness.protocols import UsageError
from harness.virtual_jobs import Simulator, made_by

KEYS = ("published", "out", "only")
UPDATES = 8  # of each run, the first of which fills the pipeline of an asynchronous one


@dataclass(frozen=True)
class Case:
    """A published figure by its dotted key, the run that predicts it, and where its summary has the
    figure."""

    key: str
    overrides: tuple[str, ...]
    given: str
    quantity: str = "time.per_update_s"
    fitted: bool = False  # the constants in `overrides` were chosen for this very figure


_PAPER = ("hardware=8xb200", "workload=swebench_verified")
_PAPER_GIVEN = "8 x B200, 4 + 4, 27 B, 32 x 8, 300 turns, 131,072 tokens, ledgers in host memory"
# Lives of 0.295 times as many turns, verified in 0.295 times the time, and a learner at 6.4 % of
# the peak make the synchronous row come out: all that was tried before the others were run.
_PAPER_FITTED = (*_PAPER, "workload.turns.median=11.8", "workload.verify_s.median=23.6",
                 "hardware.train_efficiency=0.064")  # fmt: skip
_PAPER_FITTED_GIVEN = f"{_PAPER_GIVEN}; turns, verification and efficiency fitted to the sync rows"
_NEMO = ("hardware=4xgb200", "workload=math")
_NEMO_GIVEN = "2 + 2 GB200, 16 x 8, 4,096 tokens, seconds a chunk, correlation in a group"
_NEMO_4B = (*_NEMO, "hardware.shape=qwen3_4b", "workload.action_tokens.median=2000",
            "rollout.max_new_tokens=16384", "rollout.max_context_tokens=16896")  # fmt: skip
_NEMO_4B_GIVEN = "2 + 2 GB200, 16 x 8; assumed 16,384 tokens at most, 2,000 at the median"
_VERL = ("workload=math", "rollout.groups_per_batch=512", "rollout.group_size=16",
         "rollout.max_new_tokens=28672", "rollout.max_context_tokens=29184",
         "workload.action_tokens.median=2000", "workload.action_tokens.sigma=1.0")  # fmt: skip
_VERL_GIVEN = "H20, 7 B, n = 16, 28,672 tokens; assumed 512 prompts, 2,000 tokens at the median"
_SYNC, _STREAM = "schedule=sync", "schedule=stream"


def _verl(devices: int) -> tuple[Case, Case]:
    half = devices // 2
    hardware = (f"hardware={devices}xh20", *_VERL)
    together = (f"schedule.engine_devices={devices}", f"schedule.learner_devices={devices}")
    row = f"verl_fully_async.gpus_{devices}"
    return (
        Case(f"{row}.sync.step", (*hardware, "schedule=sync_colocated", *together), _VERL_GIVEN),
        Case(f"{row}.async_{half}_{half}.step", (*hardware, "schedule=async"), _VERL_GIVEN),
    )


CASES: tuple[Case, ...] = (
    Case("thundersyncrl_paper.grpo_step.sync", (*_PAPER, _SYNC), _PAPER_GIVEN),
    Case(
        "thundersyncrl_paper.grpo_step.sync_learner_idle_fraction", (*_PAPER, _SYNC), _PAPER_GIVEN,
        "idle.learner",
    ),
    Case("thundersyncrl_paper.grpo_step.stream", (*_PAPER, _STREAM), _PAPER_GIVEN),
    Case("thundersyncrl_paper.grpo_step.async", (*_PAPER, "schedule=async"), _PAPER_GIVEN),
    Case("thundersyncrl_paper.grpo_step.fully_async", (*_PAPER, "schedule=async_4"), _PAPER_GIVEN),
    *(
        Case(f"thundersyncrl_paper.grpo_step.{figure}", (*_PAPER_FITTED, f"schedule={schedule}"),
             _PAPER_FITTED_GIVEN, quantity, schedule == "sync")
        for figure, schedule, quantity in (
            ("sync", "sync", "time.per_update_s"),
            ("sync_learner_idle_fraction", "sync", "idle.learner"),
            ("stream", "stream", "time.per_update_s"),
            ("async", "async", "time.per_update_s"),
            ("fully_async", "async_4", "time.per_update_s"),
        )
    ),
    Case("nemo_rl_thundersync.iteration_2_2.batch", (*_NEMO, _SYNC), _NEMO_GIVEN),
    Case(
        "nemo_rl_thundersync.iteration_2_2.group", (*_NEMO, _STREAM, "schedule.release=group"),
        _NEMO_GIVEN,
    ),
    Case("nemo_rl_thundersync.iteration_2_2.trajectory", (*_NEMO, _STREAM), _NEMO_GIVEN),
    Case("nemo_rl_thundersync.qwen3_4b_2_2.batch.iteration", (*_NEMO_4B, _SYNC), _NEMO_4B_GIVEN),
    Case(
        "nemo_rl_thundersync.qwen3_4b_2_2.group.iteration",
        (*_NEMO_4B, _STREAM, "schedule.release=group"), _NEMO_4B_GIVEN,
    ),
    *_verl(32),
    *_verl(128),
)  # fmt: skip


def _lookup(content: Any, key: str) -> float:
    for part in key.split("."):
        content = content[part]
    return float(content)


def predict(published: Any, folder: Path, only: str) -> list[dict[str, Any]]:
    """A row for each case whose key begins with `only`; equal overrides are run once."""
    cases = [case for case in CASES if case.key.startswith(only)]
    if not cases:
        raise UsageError(f"only={only}: no case begins so; there is: {CASES[0].key}, ...")
    first: dict[tuple[str, ...], Case] = {}
    for case in cases:
        first.setdefault(case.overrides, case)
    with Simulator() as simulator:

        def play(case: Case) -> dict[str, Any]:
            budget = ("budget.kind=updates", f"budget.limit={UPDATES}")
            name = f"{case.key}{'.fitted' * (_PAPER_FITTED[-1] in case.overrides)}"
            found = simulator.run(simulator.config([*budget, *case.overrides]), folder / name)
            print(f"VIRTUAL {name}: done", file=sys.stderr, flush=True)
            return found

        played = simulator.side_by_side(play, list(first.values()))
    summaries = dict(zip(first, played, strict=True))
    rows = []
    for case in cases:
        summary = summaries[case.overrides]
        wanted, found = _lookup(published, case.key), _lookup(summary, case.quantity)
        rows.append(
            dataclasses.asdict(case)
            | {"published": wanted, "predicted": found, "error": found / wanted - 1,
               "hardware": summary["hardware"], "clock": summary["clock"]}
        )  # fmt: skip
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown; the hardware's label says that it is simulated."""
    lines = [
        "| published | figure | predicted | error | hardware | clock | run | given to the model |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['key']} | {row['published']:g} | {row['predicted']:.4g} | "
            f"{100 * row['error']:+.1f} %{', fitted' * row['fitted']} | {row['hardware']} | "
            f"{row['clock']} | `{' '.join(row['overrides'])}` | {row['given']} |"
        )
    return "\n".join(lines) + "\n"


def predict_from_command_line() -> None:
    usage = "python -m harness.predict published=FILE out=FOLDER"
    given = entry.settings(sys.argv[1:], KEYS, ("published", "out"), usage)
    file, folder = Path(given["published"]).expanduser(), Path(given["out"]).expanduser()
    try:
        published = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"published={file}: {error}; give published.json") from error
    folder.mkdir(parents=True, exist_ok=True)
    rows = predict(published, folder.resolve(), given.get("only", ""))
    arguments = [a for a in sys.argv[1:] if not a.startswith("out=")]
    head = f"# Published figures and predicted ones\n\n{made_by('harness.predict', arguments)}\n"
    (folder / "predictions.md").write_text(head + table(rows), encoding="utf-8")
    (folder / "predictions.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows), file=sys.stderr)
    entry.closing_line(rows)


def main() -> int:
    return entry.guarded(predict_from_command_line, __doc__)


if __name__ == "__main__":
    sys.exit(main())
