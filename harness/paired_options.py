"""The command line of harness.paired: which variants, on which recorded updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import composition
from harness.config import Config, flatten
from harness.protocols import UsageError
from harness.replay import whole_batches
from harness.validation import check_trains, validate
from harness.workload import WORKLOADS, Batches

MAY_DIFFER = (
    "schedule.name",
    "schedule.target",
    "schedule.release",
    "schedule.chunk_tokens",
    "ledger.max_open_groups",
)
PINNED = ("cluster.pin_cores=true", "tracking=none")
LETTERS = "abcdefgh"
UPDATES = 24  # where nobody says; fewer where fewer were recorded
FEWEST = 2  # an interval needs them


def parse(arguments: Sequence[str]) -> tuple[dict[str, Config], int | None, str]:
    """(variants, updates where they are given, workload). Each letter gives a variant's overrides
    (comma-separated); the rest is for all. Without any letter a is sync and b is stream."""
    letters: dict[str, str] = {}
    options: dict[str, str | None] = {"updates": None, "workload": "recorded"}
    shared: list[str] = list(PINNED)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in options:
            options[key] = value
        elif len(key) == 1:
            letters[key] = _variant(key, value)
        else:
            shared.append(argument)
    letters = letters or {"a": "schedule=sync", "b": "schedule=stream"}
    updates, workload = _updates(options["updates"]), str(options["workload"])
    if workload not in WORKLOADS:
        raise UsageError(f"workload={workload}: not available; there is: {', '.join(WORKLOADS)}")
    if len(letters) < 2:
        raise UsageError(f"{next(iter(letters))}=...: give two variants or more, a to h")
    configs = {
        letter: composition.compose(shared + split(letters[letter])) for letter in sorted(letters)
    }
    _check(configs)
    return configs, updates, workload


def recording(config: Config, updates: int | None) -> tuple[Batches, int]:
    """(what is played, how many updates of it). Raises UsageError for more updates than were
    recorded whole."""
    recorded = whole_batches(Path(str(config.replay)), config.rollout)
    if len(recorded) < FEWEST:
        raise UsageError(
            f"replay={config.replay}: {len(recorded)} whole update in it; a comparison needs at "
            f"least {FEWEST}: record a longer run"
        )
    if updates is None:
        return recorded, min(UPDATES, len(recorded))
    if updates > len(recorded):
        raise UsageError(
            f"updates={updates}: replay={config.replay} has {len(recorded)} whole updates, and a "
            f"repeat tells nothing new; give updates={len(recorded)} or fewer"
        )
    return recorded, updates


def _variant(letter: str, overrides: str) -> str:
    if letter not in LETTERS:
        raise UsageError(
            f"{letter}={overrides}: no such variant; {LETTERS[0]} to {LETTERS[-1]} are variants"
        )
    if not overrides:
        raise UsageError(f"{letter}=: an empty variant; give its overrides: {letter}=schedule=sync")
    return overrides


def split(overrides: str) -> list[str]:
    """At commas outside brackets and quotes: a value may be a list of its own."""
    parts, depth, quote = [""], 0, ""
    for character in overrides:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in ")}]":
            depth -= 1
        elif character == "," and not depth:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def _updates(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < FEWEST:
        raise UsageError(f"updates={text}: a whole number of at least {FEWEST}")
    return int(text)


def _check(configs: Mapping[str, Config]) -> None:
    (first, reference), *others = configs.items()
    for config in configs.values():
        validate(config)
        check_trains(config, "harness.paired")
        if config.parity.every:
            raise UsageError(
                f"parity.every={config.parity.every}: harness.paired checks no parity; leave it "
                "out, python -m harness.run replay=... takes it"
            )
        if config.schedule.name in ("one_step_off", "async"):
            raise UsageError(
                f"schedule={config.schedule.name}: harness.paired plays one update at a time, and "
                "this schedule overlaps them; python -m harness.run -m schedule=... compares it"
            )
        if config.replay is None:
            raise UsageError("replay=null: give a run's trajectories.jsonl to play back")
    for letter, config in others:
        theirs = dict(flatten(config))
        for key, value in flatten(reference):
            if value != theirs[key] and key not in MAY_DIFFER:
                raise UsageError(
                    f"{key}={value} under {first}, {theirs[key]} under {letter}: all play on one "
                    f"engine and one learner; only {', '.join(MAY_DIFFER)} may differ"
                )
