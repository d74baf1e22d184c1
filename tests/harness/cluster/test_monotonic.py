"""Another machine's clock in ours."""

from __future__ import annotations

import subprocess
import sys

from harness.cluster.monotonic import Reading, identity, offset_s, shifted
from harness.protocols import Interval


def test_the_quickest_answer_counts_and_bounds_the_error() -> None:
    """Theirs is 1000 s behind; answers take long on the way back, on the way there, or neither."""
    readings = [
        Reading(5000.0, 4000.01, 5001.0),
        Reading(5002.0, 4002.99, 5003.0),
        Reading(5004.0, 4004.012, 5004.02),
    ]
    offset, error = offset_s(readings)
    assert abs(offset - 1000.0) <= error
    assert round(error, 9) == 0.01


def test_intervals_are_moved_whole() -> None:
    one = Interval("engine/1", "generate", 10.0, 12.5, {"generated_tokens": 3})
    (moved,) = shifted([one], 100.0)
    assert (moved.start_s, moved.end_s) == (110.0, 112.5)
    assert (moved.resource, moved.name, moved.args) == (one.resource, one.name, one.args)
    assert shifted([one], 0.0) == [one]


def test_processes_of_one_machine_have_one_clock() -> None:
    code = "from harness.cluster.monotonic import identity; print(identity())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == identity() != ""
