"""Makes mini tasks from a seed: a small package, one syntax-tree mutation, an issue, tests."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

from environments.swebench.mini.evaluate import Failure, run_function
from environments.swebench.mini.mutate import render
from environments.swebench.mini.task import (
    Case,
    Function,
    MiniTask,
    Package,
    site_key,
    split_of,
)
from environments.swebench.mini.templates import TEMPLATES, Mutation, Template

PACKAGES = ("shop", "game", "bank", "lab", "farm", "mail", "team", "park")
MODULES = ("core", "util", "calc", "data", "rules", "stats", "logic", "base")
NOUNS = (
    *("items", "prices", "scores", "orders", "points", "tasks", "users", "votes", "rows", "steps"),
    *("cards", "coins", "nodes", "pages", "words", "books", "goals", "units", "files", "boxes"),
)
LISTS = ("xs", "vals", "nums", "arr", "seq")
SCALARS = ("a", "b", "c", "n", "k", "t", "x", "y")
LOCALS = frozenset("ksmvir")  # names that template bodies use themselves

VALUE_ONLY_SHARE = 0.25  # issues that give one wrong value and no words
VISIBLE_FAILURE_SHARE = 2 / 3  # tasks where a test already in the repository fails
SLOW_SHARE = 0.1  # tasks with a test that really computes for SLOW_S seconds
SLOW_S = (0.1, 0.6)
VISIBLE_CASES, HIDDEN_CASES = 2, 7


def _function(template: Template, rng: random.Random) -> Function:
    names = {"L": rng.choice(LISTS)}
    constant = rng.randint(2, 12)
    free = [s for s in SCALARS if s not in LOCALS]
    names["A"], names["B"], names["C"] = rng.sample(free, 3)
    if template.parameters == "ABC":
        names["B"], names["C"] = "lo", "hi"
    name = f"{rng.choice(template.verbs)}_{rng.choice(NOUNS)}"
    return Function(template, name, names, constant, render(template, name, names, constant))


def _arguments(function: Function, number: int, rng: random.Random) -> tuple[Any, ...]:
    """Arguments of case `number`: values near the function's own limits come up often."""
    parameters, constant = function.template.parameters, function.constant
    values = [rng.randint(-9, 20) for _ in range(rng.randint(2, 5))]
    if number % 2 == 0:
        values = [abs(v) + 1 for v in values]
    if parameters == "ABC":
        low = rng.randint(0, 6)
        high = low + rng.randint(2, 8)
        near = [low - 3, high + 4, low + 1, low, high]
        value = near[number] if number < len(near) else rng.randint(-9, 20)
        return (value, low, high)
    arguments: list[Any] = []
    for parameter in parameters:
        if parameter == "L":
            arguments.append(values)
        elif parameter == "B":
            arguments.append(rng.randint(-5, 9))
        elif "L" in parameters:
            arguments.append(
                rng.choice([values[0], rng.randint(1, 4), rng.randint(-5, 15), constant])
            )
        else:
            special = [constant, rng.randint(1, 9), rng.randint(-9, 20), constant + 1]
            special += [rng.randint(2, 7), 1, 2]
            arguments.append(special[number])
    return tuple(arguments)


def _expected_cases(function: Function, count: int, rng: random.Random) -> list[Case]:
    cases = []
    for number in range(count):
        arguments = _arguments(function, number, rng)
        value = run_function(function.source, function.name, arguments)
        if not isinstance(value, Failure):
            cases.append(Case(arguments, value))
    return cases


def _choose_bug(
    functions: Sequence[Function], split: str, rng: random.Random
) -> tuple[Function, Mutation] | None:
    """A mutation whose site belongs to the split; demonstrations draw hard ones more often."""
    sites = [(f, m) for f in functions for m in f.template.mutations]
    sites = [(f, m) for f, m in sites if split_of(site_key(f, m)) == split]
    if not sites:
        return None
    weights = [m.weight if split == "demo" else 1 for _, m in sites]
    return rng.choices(sites, weights)[0]


def _issue(target: Function, case: Case, got: Any, symptom: str | None) -> str:
    if symptom is not None:
        return f"{target.name} {symptom}."
    call = f"{target.name}({', '.join(map(repr, case.arguments))})"
    tail = "got an error." if isinstance(got, Failure) else f"got {got!r}."
    return f"{call} should be {case.expected!r}, {tail}"


def _order_cases(
    failing: list[bool], show_failure: bool, rng: random.Random
) -> tuple[list[int], int]:
    """An order of the target's cases and how many of its head are visible.

    Where no failure may show and fewer than two cases pass, the target has no visible test at all,
    as happens in real repositories; choosing other bugs instead would skew their distribution.
    """
    good = [i for i in range(len(failing)) if not failing[i]]
    bad = [i for i in range(len(failing)) if failing[i]]
    rng.shuffle(good)
    rng.shuffle(bad)
    head: list[int] = []
    if show_failure:
        head = [bad.pop(), good.pop() if good else bad.pop()]
        rng.shuffle(head)
    elif len(good) >= VISIBLE_CASES:
        head = [good.pop() for _ in range(VISIBLE_CASES)]
    rest = good + bad
    rng.shuffle(rest)
    return head + rest, len(head)


def _draw_functions(count: int, split: str, rng: random.Random) -> list[Function]:
    weights = [max(m.weight for m in t.mutations) if split == "demo" else 1 for t in TEMPLATES]
    templates: list[Template] = []
    while len(templates) < count:
        template = rng.choices(TEMPLATES, weights)[0]
        if template not in templates:
            templates.append(template)
    rng.shuffle(templates)
    return [_function(t, rng) for t in templates]


def _draw_package(split: str, rng: random.Random) -> Package:
    name, modules = rng.choice(PACKAGES), rng.sample(MODULES, 2)
    first, second = rng.randint(2, 4), rng.randint(2, 4)
    functions = _draw_functions(first + second, split, rng)
    parts = (tuple(functions[:first]), tuple(functions[first:]))
    return Package(name, (modules[0], modules[1]), parts)


def _slow_test(functions: Sequence[Function], rng: random.Random) -> tuple[Function, int]:
    """A function and how often a test calls it, to compute for a log-uniform time in SLOW_S."""
    slow = rng.choice(functions)
    seconds = SLOW_S[0] * (SLOW_S[1] / SLOW_S[0]) ** rng.random()
    return slow, round(seconds * 1e9 / slow.template.call_ns / 1000) * 1000


def _try_task(package: Package, split: str, rng: random.Random) -> MiniTask | None:
    functions = package.all_functions
    bug = _choose_bug(functions, split, rng)
    if bug is None:
        return None
    target, mutation = bug
    buggy = render(target.template, target.name, target.names, target.constant, mutation)
    cases = {
        f.name: _expected_cases(f, HIDDEN_CASES if f is target else VISIBLE_CASES, rng)
        for f in functions
    }
    before = [run_function(buggy, target.name, c.arguments) for c in cases[target.name]]
    failing = [
        isinstance(value, Failure) or value != c.expected
        for value, c in zip(before, cases[target.name], strict=True)
    ]
    if not any(failing) or len(failing) < HIDDEN_CASES - 2:
        return None
    order, visible = _order_cases(failing, rng.random() < VISIBLE_FAILURE_SHARE, rng)
    shown = next(i for i in order if failing[i])
    symptom = None if rng.random() < VALUE_ONLY_SHARE else rng.choice(mutation.symptoms)
    issue = _issue(target, cases[target.name][shown], before[shown], symptom)
    slow, repeats = None, 0
    if rng.random() < SLOW_SHARE:
        slow, repeats = _slow_test([f for f in functions if f is not target and cases[f.name]], rng)
    cases[target.name] = [cases[target.name][i] for i in order]
    failing_set = frozenset(n for n, i in enumerate(order) if failing[i])
    return MiniTask(
        package=package,
        target=target,
        mutation=mutation,
        buggy_source=buggy,
        issue=issue,
        value_only=symptom is None,
        cases={name: tuple(copy.deepcopy(c)) for name, c in cases.items()},
        failing=failing_set,
        visible_cases=visible,
        slow=slow,
        slow_repeats=repeats,
    )


def generate(split: str, seed: int) -> Iterator[MiniTask]:
    """An endless, reproducible stream of one split's tasks, each with a package of its own.

    In train and eval each mutation site is used once, too.
    """
    seen: set[str] = set()
    number = 0
    while True:
        rng = random.Random(f"{split}/{seed}/{number}")
        number += 1
        package = _draw_package(split, rng)
        if split_of(package.key) != split or package.key in seen:
            continue
        task = _try_task(package, split, rng)
        if task is None or (split != "demo" and task.site in seen):
            continue
        seen |= {package.key, task.site}
        yield task
