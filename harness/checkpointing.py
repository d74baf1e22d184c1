"""Saves a run at the ends of its updates, and puts one back where it was (docs/checkpoints.md)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.protocols import SandboxCounters
from harness import checkpoint, training_state
from harness.checkpoint import Digests
from harness.config import Config
from harness.continuation import LOGS, Resumption, played_again, settings
from harness.evaluation import Evaluation
from harness.outcomes import Outcomes
from harness.parts import Parts
from harness.protocols import Interval, Trajectory, UsageError
from harness.timeline import Timeline, plain
from harness.trajectory_lines import decode

if TYPE_CHECKING:
    from harness.experiment import Experiment

_TRACE = "timeline.jsonl"
_VOLATILE = ("tracker_run",)  # of a state: where figures went


class Checkpoints:
    """Of one experiment. `resumed` is what it goes on from."""

    def __init__(self, config: Config, folder: Path, resumed: Resumption | None) -> None:
        """Shortens the run's logs to what the checkpoint knows, except that under wall time the
        trajectories that ended later are kept."""
        self._config, self._folder = config, folder
        self.resumed = None if resumed is None or resumed.replayed else resumed
        self._expected = resumed if resumed is not None and resumed.replayed else None
        self._digests = Digests(folder)
        self._traced = self._told = 0  # intervals and instants that are in the journal
        self.kept: list[Trajectory] = []
        self._known: dict[str, Trajectory] = {}
        self._earlier: list[Trajectory] = []  # of `kept`, what the checkpoint has counted
        self.now_s = 0.0
        if self.resumed is not None:
            self._take(self.resumed)
        elif config.checkpoint.every and self._expected is None:
            checkpoint.discard(folder, None)
        if self.resumed is None and config.checkpoint.every:
            checkpoint.cut(folder, {}, LOGS)

    # -- going on ----------------------------------------------------------------------------------

    def _take(self, resumed: Resumption) -> None:
        folder, state, logs = self._folder, resumed.state, resumed.logs
        checkpoint.discard(folder, resumed.folder)
        # In virtual time, and in a replay, what was not learnt from happens again as it did.
        again = self._config.clock.kind == "virtual" or self._config.replay is not None
        lines = "trajectories.jsonl"
        checkpoint.cut(folder, logs, [name for name in LOGS if again or name != lines])
        first, before = training_state.open_groups(
            state["training"], self._config.rollout.groups_per_batch
        )
        wanted = set(training_state.wanted(state["training"]))
        counted = logs[lines]["bytes"] if lines in logs else 0
        self.now_s = state["now_s"]
        for line, end in _whole_lines(folder / lines):
            later = end > counted
            kept = not again and (line["group"] >= first or line["group"] in before)
            if not (later or kept or line["trajectory_id"] in wanted):
                continue
            trajectory = decode(line)
            self._known[trajectory.trajectory_id] = trajectory
            if kept:
                self.kept.append(trajectory)
                if not later:
                    self._earlier.append(trajectory)
            if later:  # the killed run had come at least so far
                self.now_s = max(self.now_s, _ended_s(trajectory))

    async def restore(self, experiment: Experiment, parts: Parts, rollouts: Any) -> None:
        """Into an experiment whose training has not begun."""
        resumed, training = self.resumed, experiment.training
        if resumed is None or training is None:
            return
        state = resumed.state
        if state["policy_sha256"] != experiment.policy_sha256:
            raise UsageError(
                f"resume={self._config.resume}: checkpoint {resumed.folder.name} began with other "
                f"weights than policy={self._config.policy.name} has now; give that policy's folder"
            )
        await parts.learner.restore(str(resumed.folder), state["learner"])
        path, version = await parts.learner.publish()
        await parts.engine.update_weights(path, version)
        await parts.learner.drain_intervals()
        await parts.engine.drain_intervals()
        training_state.restore(training, state["training"], self._known, path)
        self._restore_figures(experiment, state)
        if experiment.virtual is not None:
            experiment.virtual.resume(self.now_s)  # publication took none of the run's time
            experiment.virtual.events = state["virtual"]["events"]
            parts.engine.restore(state["virtual"]["engine"])
            for name, value in state["virtual"]["sandboxes"].items():
                setattr(parts.provider.counters, name, value)
            rollouts.slots.names = state["virtual"]["slots"]
        self._count_again(experiment)

    def _restore_figures(self, experiment: Experiment, state: Mapping[str, Any]) -> None:
        experiment.errors = Counter(state["errors"])
        experiment.snapshots.restore(state["snapshots"], _file(experiment))
        experiment.records.outcomes = Outcomes.of(state["outcomes"])
        trace, instants = self._read_trace(experiment.timeline)
        experiment.timeline.restore(state["timeline"], trace, instants)
        self._traced = len(experiment.timeline.traced())
        self._told = len(experiment.timeline.instants)

    def _count_again(self, experiment: Experiment) -> None:
        """What the checkpoint has counted of trajectories that are handed over again is taken out
        first."""
        training = experiment.training
        assert training is not None
        tokens = training.budget.counters.tokens
        for trajectory in self._earlier:
            tokens += trajectory.action_tokens
            experiment.records.outcomes.remove(trajectory)
            if trajectory.infrastructure_error is not None:
                training.recorder.lost -= 1
                experiment.errors[trajectory.infrastructure_error] -= 1
        training.tokens_before = tokens
        experiment.errors = +experiment.errors
        experiment.records.written = {t.trajectory_id for t in self.kept}

    @property
    def times(self) -> Mapping[str, float]:
        """Seconds of the run that goes on, up to its checkpoint."""
        assert self.resumed is not None
        return self.resumed.state["times"]

    def history(self) -> list[dict[str, Any]]:
        """For the manifest: where the run went on, each time, and the commit before."""
        try:
            before = json.loads((self._folder / "manifest.json").read_bytes())
        except (OSError, ValueError):
            before = {}
        if self.resumed is None:
            return []
        this = {"checkpoint": self.resumed.folder.name, "git": before.get("git")}
        return [*before.get("resumed_from", []), this]

    def told(self) -> str:
        """One line for a run that goes on."""
        assert self.resumed is not None
        kept = f"{len(self.kept)} trajectories that had ended since are used as they are"
        return f"going on from {self.resumed.folder.name}" + (f"; {kept}" if self.kept else "")

    def evaluations(self) -> dict[str, Evaluation]:
        """Those that were made before training began."""
        if self.resumed is None:
            return {}
        found = {name: dict(kept) for name, kept in self.resumed.state["evaluations"].items()}
        for kept in found.values():
            kept["pass_at_k"] = {int(k): value for k, value in kept["pass_at_k"].items()}
        return {name: Evaluation(**kept) for name, kept in found.items()}

    # -- saving ------------------------------------------------------------------------------------

    async def begin(self, experiment: Experiment, parts: Parts, rollouts: Any) -> None:
        """As training begins: what ends before its first update is not lost either."""
        training = experiment.training
        assert training is not None
        if self._config.checkpoint.every:
            training.budget.start()
            training.updated_s = parts.clock.now()
            await self._save(0, experiment, parts, rollouts)

    async def boundary(self, experiment: Experiment, parts: Parts, rollouts: Any) -> None:
        """At an update's end: save, where it is time to. No part of the budget."""
        training, every = experiment.training, self._config.checkpoint.every
        assert training is not None
        update = training.budget.counters.updates
        if not every or (update % every and not training.budget.exhausted):
            return
        await self._save(update, experiment, parts, rollouts)

    async def _save(self, update: int, experiment: Experiment, parts: Parts, rollouts: Any) -> None:
        training = experiment.training
        assert training is not None
        with training.budget.paused("checkpoint"):
            part = checkpoint.begin(self._folder, update)
            learner = await parts.learner.save(str(part))
            # Nothing is awaited from here on: state and logs are of one moment.
            state = self._state(experiment, parts, rollouts) | {"learner": learner}
            self._write_trace(experiment.timeline)
            names = [*LOGS, *(f"checkpoints/{name}" for name in state["snapshots"]["files"])]
            logs = {n: self._digests.of(n) for n in names if (self._folder / n).is_file()}
            if played_again(state, self._config):  # it needs no logs, and has to come to these
                state, logs = state | {"logs": logs}, {}
            checkpoint.dump(part / checkpoint.STATE, state)
            self._compare(update, part)
            checkpoint.commit(part, self._folder, update, logs)
            checkpoint.keep(self._folder, self._config.checkpoint.keep)

    def _state(self, experiment: Experiment, parts: Parts, rollouts: Any) -> dict[str, Any]:
        training = experiment.training
        assert training is not None
        errors = Counter(experiment.errors) + Counter(rollouts.infrastructure_errors)
        if experiment.scoring is not None:
            errors += experiment.scoring.errors
        kept = training_state.state(training)
        virtual = experiment.virtual
        return {
            "config": settings(self._config),
            "update": training.budget.counters.updates,
            "now_s": parts.clock.now(),
            "policy_sha256": experiment.policy_sha256,
            "tracker_run": experiment.tracker.run_id,
            "training": kept,
            "virtual": None
            if virtual is None
            else {
                "events": virtual.events,
                # With rollouts under way they are not kept: such a run is played again.
                "engine": None if kept["flow"] is not None else parts.engine.state(),
                "sandboxes": None
                if kept["flow"] is not None
                else _at_rest(parts.provider.counters),
                "slots": rollouts.slots.names,
            },
            "timeline": experiment.timeline.state(),
            "evaluations": {name: asdict(e) for name, e in experiment.evaluations.items()},
            "errors": dict(errors),
            "outcomes": experiment.records.outcomes.state(),
            "snapshots": experiment.snapshots.state(),
            "times": experiment.times(),
        }

    def _compare(self, update: int, part: Path) -> None:
        """A run that is played again has to come to the same checkpoint. Raises UsageError."""
        if self._expected is None or update != self._expected.update:
            return
        expected, found = dict(self._expected.state), checkpoint.load(part)
        for name in _VOLATILE:
            expected[name] = found[name] = None
        # As text: a number that is none differs from itself.
        differ = [k for k in expected if json.dumps(expected[k]) != json.dumps(found.get(k))]
        if differ:
            raise UsageError(
                f"resume={self._config.resume}: played again up to {self._expected.folder.name} "
                f"the run differs in {', '.join(differ)}: the program has changed since; run it "
                "from the beginning"
            )

    # -- the trace, which only grows ---------------------------------------------------------------

    def _write_trace(self, timeline: Timeline) -> None:
        intervals, instants, origin_s = timeline.traced(), timeline.instants, timeline.origin_s
        with (self._folder / _TRACE).open("a", encoding="utf-8") as file:
            for interval in intervals[self._traced :]:
                resource, name, start_s, end_s, args = plain(interval)
                line = [resource, name, start_s - origin_s, end_s - origin_s, args]
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            for track, name, at_s, args in instants[self._told :]:
                line = [track, name, at_s - origin_s, args]
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._traced, self._told = len(intervals), len(instants)

    def _read_trace(self, timeline: Timeline) -> tuple[list[Interval], list[Any]]:
        intervals: list[Interval] = []
        instants: list[Any] = []
        origin_s = timeline.origin_s
        for line, _ in _whole_lines(self._folder / _TRACE):
            if len(line) == 5:
                resource, name, start_s, end_s, args = line
                made = Interval(resource, name, start_s + origin_s, end_s + origin_s, args)
                intervals.append(made)
            else:
                track, name, at_s, args = line
                instants.append((track, name, at_s + origin_s, args))
        return intervals, instants


def _whole_lines(path: Path) -> Iterator[tuple[Any, int]]:
    """(value, where its line ends) of a log of JSON lines; a last line that a crash cut short is
    cut off."""
    if not path.exists():
        return
    end = 0
    with path.open("r+b") as file:
        for text in file:
            if not text.endswith(b"\n"):
                file.truncate(end)
                return
            end += len(text)
            yield json.loads(text), end


def _ended_s(trajectory: Trajectory) -> float:
    turns = [turn.finished_s for turn in trajectory.turns]
    return max(trajectory.started_s, trajectory.finished_s, trajectory.reward_s, *turns)


def _file(experiment: Experiment) -> Path | None:
    """Of the weights that are published."""
    assert experiment.training is not None
    path = experiment.training.published
    return None if path is None or not Path(path).is_file() else Path(path)


def _at_rest(counters: SandboxCounters) -> dict[str, Any]:
    """Between two batches in virtual time: every sandbox has been stopped, if perhaps not yet in
    reality."""
    return asdict(counters) | {"removed": counters.created - counters.leaked}
