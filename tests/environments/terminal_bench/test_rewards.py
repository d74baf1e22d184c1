"""Reward files: what is a reward, and what nobody can read."""

from __future__ import annotations

import pytest

from environments.terminal_bench.rewards import parse_reward


@pytest.mark.parametrize(
    ("json_file", "text_file", "reward", "metrics"),
    [
        (None, b"1\n", 1.0, {}),
        (None, b" -0.25 ", -0.25, {}),
        (b'{"reward": 0.5, "speed": 3, "ok": true, "note": "x"}', None, 0.5, {"speed": 3.0}),
        (b'{"reward": 0.5}', b"1", 0.5, {}),
        (b'{"speed": 3}', b"1", 1.0, {"speed": 3.0}),
        (b'{"reward": "1"}', b"0", 0.0, {}),
    ],
)
def test_a_reward(json_file, text_file, reward: float, metrics: dict[str, float]) -> None:
    assert parse_reward(json_file, text_file) == (reward, metrics)


@pytest.mark.parametrize(
    ("json_file", "text_file", "words"),
    [
        (None, None, "no reward file"),
        (None, b" \n", "reward.txt is empty"),
        (None, b"1\n1\n", "not one number"),
        (None, b"\xff", "not one number"),
        (None, b"nan", "not finite"),
        (None, b"-inf", "not finite"),
        (None, b"1e999", "not finite"),
        (b"", b"1", "reward.json is empty"),
        (b"{", b"1", "no JSON"),
        (b"[" * 100_000, b"1", "no JSON"),
        (b"[1]", b"1", "no object"),
        (b'{"reward": NaN}', b"1", "reward is not finite"),
        (b'{"reward": 1, "speed": Infinity}', None, "speed is not finite"),
        (b'{"speed": 1}', None, 'no "reward"'),
        (b'{"reward": true}', None, "no reward file"),
    ],
)
def test_no_reward(json_file, text_file, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_reward(json_file, text_file)
