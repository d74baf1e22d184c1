"""The bounded timeline gives a run's figures as the whole one does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from harness import compact
from harness.accounting import ALIVE, EXCHANGE, idle, resources
from harness.compact import CompactTimeline
from harness.composition import compose
from harness.peers import rollouter_idle_ratio, trainer_idle_ratio, version_windows
from harness.protocols import Interval
from harness.timeline import Timeline, blocked

WINDOW = [(5.0, 95.0)]


def history(seed: int, updates: int = 5) -> list[list[Interval]]:
    """What drains of a run come to: engine and learner in the order of time, sandboxes whose work
    lies in their lives, some of it before the window and behind it."""
    draw, drains = random.Random(seed), []
    for update in range(updates):
        start, found = 20.0 * update, []
        for slot in range(4):
            born = start + draw.random() * 8
            died = born + 3 + draw.random() * 8
            found += [
                Interval(f"sandbox/{slot:02d}", "exec", born, born + 1),
                Interval(f"sandbox/{slot:02d}", "verify", died - 1.5, died),
                Interval(blocked(f"sandbox/{slot:02d}"), ALIVE, born, died),
            ]
        middle = start + 4 + draw.random()
        found += [
            Interval("engine/0", "generate", start, middle, {"generated_tokens": 5}),
            Interval("engine/0", "generate", middle, middle + 2, {"generated_tokens": 7}),
            Interval("learner/0", "capture", middle, middle + 1, {"trajectories": ["a"]}),
            Interval("learner/0", "capture", middle + 1, middle + 2, {"trajectories": ["b"]}),
            Interval("learner/0", "step", start + 17, start + 18),
            Interval(blocked("engine/0"), EXCHANGE, start + 18, start + 19),
            Interval(blocked("learner/0"), EXCHANGE, start + 18, start + 19),
        ]
        drains.append(found)
    return drains


@pytest.mark.parametrize("seed", range(10))
def test_its_figures_are_those_of_the_whole(seed: int) -> None:
    whole, small = Timeline(0.0), CompactTimeline(lambda: 0.0)
    small.windows = lambda: WINDOW
    for drained in history(seed):
        whole.extend(drained)
        small.extend(drained)
    config = compose(["schedule=sync"])
    assert resources(config, small, WINDOW) == {
        kind: pytest.approx(shares) for kind, shares in resources(config, whole, WINDOW).items()
    }
    assert idle(config, small, WINDOW) == pytest.approx(idle(config, whole, WINDOW))
    assert version_windows(small, WINDOW) == version_windows(whole, WINDOW)
    for ratio in (
        lambda t: trainer_idle_ratio(t, 1, WINDOW), lambda t: rollouter_idle_ratio(t, WINDOW)
    ):  # fmt: skip
        assert ratio(small) == pytest.approx(ratio(whole))
    made = [i.args["generated_tokens"] for i in small.intervals if i.resource == "engine/0"]
    assert made == [5 * 12]


def test_it_does_not_grow_with_the_trajectories_and_says_what_its_trace_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "TRACE", 30)
    small = CompactTimeline(lambda: 0.0)
    for drained in history(0, updates=40):
        small.extend(drained)
        small.instant("group/00", "closed", at_s=1.0)
    assert len(small.intervals) <= 40 * 6  # per update: merged passes, a step, exchanges, lives
    small.write(tmp_path / "timeline.json")
    trace = json.loads((tmp_path / "timeline.json").read_text())
    assert len([e for e in trace["traceEvents"] if e["ph"] == "X"]) == 30
    assert trace["otherData"] == {"clock": "VIRTUAL", "events_left_out": 40 * 19 - 30 + 10}
