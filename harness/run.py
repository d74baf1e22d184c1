"""Train with one schedule: python -m harness.run schedule=stream env=swebench.

`-m` runs a sweep. Where standard output is no terminal its last line is JSON: the path of
summary.json and its headline figures (a list of them for a sweep); on a terminal it is a table.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness import entry


def headline(path: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """The figures that a script wants first; `parity_ok` where the run checks parity,
    `release_updates` (updates played at each rung) under release=auto."""
    parity, played = summary["parity"], summary.get("release_updates")
    return {
        "summary": str(path),
        **{
            name: summary[name]
            for name in ("status", "schedule", "release", "env", "dataset", "seed", "sandbox")
        },
        "updates": summary["updates"],
        "accuracy_initial": summary["accuracy"]["initial"],
        "accuracy_final": summary["accuracy"]["final"],
        "per_update_s": summary["time"]["per_update_s"],
        "tail_s": summary["time"]["tail_s"],
        "total_s": summary["time"]["total_s"],
        "idle_learner": summary["idle"]["learner"],
        "idle_engine": summary["idle"]["engine"],
        "sandboxes_leaked": summary["sandboxes"]["leaked"],
        **({} if parity is None else {"parity_ok": parity["ok"]}),
        **({} if played is None else {"release_updates": played}),
    }


def close(sweep: bool) -> None:
    """Print the end of the run: JSON for a program, a table for a person."""
    from harness import job, multirun

    state = multirun.current()
    summaries = entry.load_summaries(state.folders if state is not None else job.folders)
    if not summaries:
        return  # nothing began: the error's line has said why
    from harness.display import parity_line, print_closing_table, printable

    if not sys.stdout.isatty():
        for path, summary in summaries:
            if summary["parity"] is not None and summary["parity"]["ok"] is False:
                line = f"parity {parity_line(summary['parity'])}: {path}"
                print(printable(line, sys.stderr), file=sys.stderr, flush=True)
        lines = [headline(path, summary) for path, summary in summaries]
        entry.closing_line(lines if sweep else lines[0])
        return
    for path, summary in summaries:
        print_closing_table(summary, path, sys.stdout)


def main() -> int:
    from harness import job

    return entry.main(job.run, job.check, "config", close)


if __name__ == "__main__":
    sys.exit(main())
