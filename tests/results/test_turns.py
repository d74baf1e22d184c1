"""The picture of what turn gradients cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.turns import draw, line, load


def bench(path: Path, policy: str, turns: int) -> Path:
    rows = [
        {"way": way, "turns": turns, "tokens": 9, "learner_s": 0.1 * n, "tail_s": 0.05 * n,
         "peak_bytes": 1e6 * n}
        for n, way in enumerate(("whole", "retain", "sweep"), start=1)
    ]  # fmt: skip
    path.write_text(json.dumps({"policy": policy, "rows": rows}) + "\n")
    return path


def test_files_of_one_policy_are_one_line(tmp_path: Path):
    found = load([bench(tmp_path / f"{n}.json", "tiny", n) for n in (8, 4)])
    assert list(found) == ["tiny"]
    assert line(found["tiny"], "retain", "tail_s") == ([4, 8], [0.1, 0.1])
    assert line(found["tiny"], "sweep", "peak_bytes") == ([4, 8], [3.0, 3.0])
    assert line(found["tiny"], "recompute", "tail_s") == ([], [])


def test_the_picture_is_drawn(tmp_path: Path):
    files = [bench(tmp_path / "a.json", "tiny", 4), bench(tmp_path / "b.json", "smollm2", 4)]
    draw(load(files), tmp_path / "turns.png")
    assert (tmp_path / "turns.png").read_bytes().startswith(b"\x89PNG")


def test_another_file_is_an_error(tmp_path: Path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a\.json: no closing line"):
        load([tmp_path / "a.json"])
