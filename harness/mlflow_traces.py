"""Agent turns as MLflow traces: one trace a trajectory, spans for its turns, their decoding and
tool calls, and the verifier. Logged when a run has ended, so that no trajectory waits for it.

Times are those of trajectories.jsonl, counted from the run's start in the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.mlflow_store import Store


def log_traces(store: Store, run_id: str, folder: Path, most: int) -> None:
    """The first `most` trajectories that ended, as traces of the run."""
    os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"
    import mlflow

    mlflow.set_tracking_uri(store.uri)  # traces have no client of their own to be told by
    client = mlflow.MlflowClient(tracking_uri=store.uri)
    started_ns = store.started_ns(run_id)
    for line in _first(folder / "trajectories.jsonl", most):
        _log(client, store.experiment_id, run_id, started_ns, line)


def _first(path: Path, most: int) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for _, text in zip(range(most), file, strict=False):
            yield json.loads(text)


def _log(client: Any, experiment: str, run_id: str, started_ns: int, line: dict[str, Any]) -> None:
    def at(seconds: float) -> int:
        return started_ns + round(seconds * 1e9)

    lost = line["infrastructure_error"]
    turns = line["turns"]
    ends = [line["finished_s"], line["reward_s"], line["started_s"]]
    ends += [turn["finished_s"] for turn in turns]
    end_s = max(t for t in ends if t is not None)
    root = client.start_trace(
        f"trajectory {line['trajectory_id']}", span_type="AGENT", experiment_id=experiment,
        run_id=run_id, start_time_ns=at(line["started_s"]), inputs={"task": line["task_id"]},
        attributes={key: line[key] for key in ("group", "index", "attempt", "end", "tokens")},
    )  # fmt: skip

    def span(name: str, kind: str, parent: str, start_s: float, end_s: float, **more: Any) -> str:
        made = client.start_span(
            name, trace_id=root.trace_id, parent_id=parent, span_type=kind,
            start_time_ns=at(start_s), attributes=more,
        )  # fmt: skip
        client.end_span(root.trace_id, made.span_id, end_time_ns=at(end_s))
        return made.span_id

    for number, turn in enumerate(turns, start=1):
        start_s, finished_s = turn["started_s"], turn["finished_s"]
        one = span(
            f"turn {number}", "CHAIN", root.span_id, start_s, finished_s,
            tokens=turn["action_end"] - turn["action_start"],
        )  # fmt: skip
        span("generate", "LLM", one, start_s, turn["generated_s"])
        span(
            "tool call", "TOOL", one, turn["generated_s"], finished_s,
            exit_code=turn["exit_code"], timed_out=turn["timed_out"],
        )  # fmt: skip
    if line["verify_s"] and line["reward_s"]:
        span("verify", "EVALUATOR", root.span_id, line["reward_s"] - line["verify_s"],
             line["reward_s"])  # fmt: skip
    client.end_trace(
        root.trace_id, outputs={"reward": line["reward"], "lost": lost},
        status="ERROR" if lost else "OK", end_time_ns=at(end_s),
    )  # fmt: skip
