"""What the ledger counts is what the allocator handed out, and never more than the plan says.

The measure is torch's own allocator, read through its profiler: every allocation and every release
inside the ledger, also of what an operator takes for itself.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from harness.memory import LedgerPlan
from thundersync.ledger import GradientLedger

SHAPES = [(128, 64), *[(64, 40)] * 8, (64,)]  # one tensor is a quarter of the whole
ELEMENTS = sum(torch.Size(s).numel() for s in SHAPES)
G = 6
ITEM = {None: 4, "float32": 4, "bfloat16": 2, "float64": 8}
MARK = 7_654_321
Buffers = list[torch.Tensor]


def gradient(value: float = 1.0) -> Buffers:
    return [torch.full(shape, value) for shape in SHAPES]


def peaks_bytes(works: Sequence[Callable[[], Any]]) -> list[int]:
    """The most that each held at once, as the allocator saw it. Starting a profiler is slow: one
    serves all, and an allocation of a size that nothing else has stands between two."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for work in works:
            torch.empty(MARK, dtype=torch.uint8)
            kept = work()
            del kept
    results: Any = profiler.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    peaks: list[int] = []
    held = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.nbytes() == MARK:
            peaks.append(0)
            held = 0
        elif event.nbytes() != -MARK:
            held += event.nbytes()
            peaks[-1] = max(peaks[-1], held)
    return peaks


def plan(**changes: Any) -> LedgerPlan:
    settings: dict[str, Any] = {
        "form": "auto", "storage": "device", "release": "reward", "buckets": 2, "groups": 3,
        "group_size": G, "max_open_groups": None, "gradient_bytes": 4, "stored_bytes": 4,
        "always": False,
    }  # fmt: skip
    return LedgerPlan(**(settings | changes))


def rewards_of(group: int, distinct: int) -> list[float]:
    return [float((i + group) % distinct) for i in range(G)]


def ledger_of(form: Any, dtype: str | None) -> GradientLedger:
    return GradientLedger(form, None if dtype is None else getattr(torch, dtype), bucket_cap=G)


def at_once(ledger: GradientLedger, groups: int, distinct: int, always: bool) -> None:
    """Rewards are known: what is captured is committed at once (release=reward)."""
    for i in range(G):
        for g in range(groups):
            ledger.capture(g, [f"{g}/{i}"], gradient(), gradient() if always else None)
            ledger.commit([f"{g}/{i}"], rewards_of(g, distinct)[i])


def pending(ledger: GradientLedger, groups: int, distinct: int, always: bool) -> None:
    """Every trajectory waits for its reward (release=submit)."""
    for i in range(G):
        for g in range(groups):
            ledger.capture(g, [f"{g}/{i}"], gradient(), gradient() if always else None)
    for i in range(G):
        for g in range(groups):
            ledger.commit([f"{g}/{i}"], rewards_of(g, distinct)[i])


def close(ledger: GradientLedger, groups: int, distinct: int, total: Buffers) -> None:
    for g in range(groups):
        known = {f"{g}/{i}": (r, r - 1.0) for i, r in enumerate(rewards_of(g, distinct))}
        ledger.fold(g, known, total)
    ledger.end_of_update()


FORMS = ("affine", "bucket", "auto")


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float64"])
def test_the_bytes_are_the_allocators(dtype):
    """In every form, with few and many rewards, with and without reward-independent terms, with
    captures committed at once and pending."""
    groups, ledgers, works = 2, [], []

    def add(form: str, fill: Any, distinct: int, always: bool) -> None:
        ledger = ledger_of(form, dtype)
        wide = torch.float32 if dtype is None else getattr(torch, dtype)
        total = [torch.zeros(s, dtype=torch.promote_types(torch.float32, wide)) for s in SHAPES]

        def work() -> None:
            fill(ledger, groups, distinct, always)
            close(ledger, groups, distinct, total)

        ledgers.append(ledger)
        works.append(work)

    for case in itertools.product(FORMS, (at_once, pending), (2, 4), (False, True)):
        add(*case)
    for ledger, truth in zip(ledgers, peaks_bytes(works), strict=True):
        assert ledger.bytes_peak == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("always", [False, True])
def test_a_whole_update_takes_what_the_formula_says(dtype, always):
    """1 total + 1 gradient in the making + min(distinct rewards, 2 or cap) per open group."""
    groups, wide = 4, torch.promote_types(torch.float32, getattr(torch, dtype))
    cases = [("affine", 2, 2), ("auto", 2, 2), ("auto", 4, 2), ("bucket", 4, 4), ("auto", 1, 1)]

    def update(form: str, distinct: int) -> None:
        total = [torch.zeros(shape, dtype=wide) for shape in SHAPES]
        ledger = ledger_of(form, dtype)
        at_once(ledger, groups, distinct, always)
        close(ledger, groups, distinct, total)

    works = [lambda f=form, d=distinct: update(f, d) for form, distinct, _ in cases]
    for (form, _, buckets), truth in zip(cases, peaks_bytes(works), strict=True):
        gradients = 2 if always else 1
        bytes_each = groups * (buckets + (1 if always else 0)) * ITEM[dtype]
        bytes_each += gradients * (4 + (2 if dtype == "bfloat16" else 0)) + wide.itemsize
        bounded = plan(
            form=form, groups=groups, buckets=buckets, always=always, stored_bytes=ITEM[dtype]
        )
        formula = bytes_each * ELEMENTS
        assert bounded.ledger_bytes(ELEMENTS) + bounded.update_bytes(ELEMENTS) == formula
        # An add with mixed dtypes widens one tensor at a time.
        widened = max(s.numel() for s in gradient()) * 8 if dtype == "float64" else 0
        assert formula <= truth * 1.001
        assert truth <= (formula + widened) * 1.02


def test_pending_captures_take_one_buffer_each():
    ledger = ledger_of("auto", None)
    (truth,) = peaks_bytes([lambda: pending(ledger, 3, 2, False)])
    assert truth == ledger.bytes_peak == 3 * G * ELEMENTS * 4
    assert ledger.bytes_peak == plan(release="submit").ledger_bytes(ELEMENTS)
    assert ledger.buffers_peak == 3 * G


def test_discarded_and_dropped_buffers_are_given_back():
    """A second update in the same ledger needs no more than the first."""
    ledger = ledger_of("bucket", None)
    total = gradient(0.0)

    def twice() -> None:
        for _ in range(2):
            for g in range(3):
                ledger.capture(g, [f"{g}/late"], gradient())
            ledger.discard(["0/late", "1/late", "2/late"])
            at_once(ledger, 3, 2, False)
            ledger.drop(0)
            for g in (1, 2):
                known = {f"{g}/{i}": (r, r - 0.5) for i, r in enumerate(rewards_of(g, 2))}
                ledger.fold(g, known, total)
            ledger.end_of_update()

    (truth,) = peaks_bytes([twice])
    assert truth == ledger.bytes_peak == (3 * 2 + 1) * ELEMENTS * 4
    ledger.reset_peaks()
    assert ledger.bytes_peak == ledger.buffers_peak == 0


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_course_of_events_exceeds_the_plan(data):
    """Random captures, commits, discards, folds and drops of three groups, in every form and
    dtype. A discarded trajectory is tried again; a group ends once all of it is committed."""
    form = data.draw(st.sampled_from(["affine", "bucket", "auto"]))
    dtype = data.draw(st.sampled_from(["bfloat16", "float32", "float64"]))
    always = data.draw(st.booleans())
    release = data.draw(st.sampled_from(["reward", "submit"]))
    ledger = GradientLedger(form, getattr(torch, dtype), bucket_cap=G)
    total = [torch.zeros(7, dtype=torch.promote_types(torch.float32, getattr(torch, dtype)))]
    waiting = [(g, i) for g in range(3) for i in range(G)]
    held: list[tuple[int, int]] = []
    committed: dict[int, dict[str, tuple[float, float]]] = {g: {} for g in range(3)}
    discards = 0
    while waiting or held or committed:
        full = [g for g, known in committed.items() if len(known) == G]
        verbs = ["end"] * bool(full) + ["commit"] * bool(held)
        if waiting and (release == "submit" or not held):
            verbs.append("capture")
        if held and release == "submit" and discards < G:
            verbs.append("discard")
        verb = data.draw(st.sampled_from(verbs))
        if verb == "capture":
            g, i = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            ledger.capture(g, [f"{g}/{i}"], [torch.ones(7)], [torch.ones(7)] if always else None)
            held.append((g, i))
        elif verb == "end":
            g = data.draw(st.sampled_from(full))
            known = committed.pop(g)
            if data.draw(st.booleans()):
                ledger.fold(g, known, total)
            else:
                ledger.drop(g)
        else:
            g, i = held.pop(data.draw(st.integers(0, len(held) - 1)))
            if verb == "commit":
                reward = float(data.draw(st.integers(0, 4)))
                ledger.commit([f"{g}/{i}"], reward)
                committed[g][f"{g}/{i}"] = reward, reward - 1.0
            else:
                ledger.discard([f"{g}/{i}"])
                waiting.append((g, i))
                discards += 1
    ledger.end_of_update()
    bounded = plan(
        form=form, release=release, always=always, stored_bytes=ITEM[dtype],
        buckets=G if form == "bucket" else 2,
    )  # fmt: skip
    scratch = bounded.update_bytes(7) - 7 * max(4, ITEM[dtype])
    widened = 7 * 8 if dtype == "float64" else 0
    assert 0 < ledger.bytes_peak <= bounded.ledger_bytes(7) + scratch + widened
    ledger.reset_peaks()
    ledger.capture(0, ["next"], [torch.ones(7)])
    assert ledger.buffers_peak == 1  # nothing else is left
