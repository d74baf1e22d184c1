"""Makes mini tasks from a seed: a small package, one syntax-tree mutation, an issue, tests.

Splits are disjoint by construction. A task's mutation site (template, mutation, function and
argument names) and its package (name and content) are hashed, and a hash belongs to exactly one
split: 15 % to eval, 40 % to train, the rest to the demonstrations of the warm start. A task is only
kept where both of its hashes belong to the split that was asked for.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from environments.swebench.mini.evaluate import Failure, Outcome, run_function
from environments.swebench.mini.templates import TEMPLATES, Mutation, Template

PACKAGES = ("shop", "game", "bank", "lab", "farm", "mail", "team", "park")
MODULES = ("core", "util", "calc", "data", "rules", "stats", "logic", "base")
NOUNS = (
    "items prices scores orders points tasks users votes rows steps cards coins nodes pages words "
    "books goals units files boxes"
).split()
LISTS = ("xs", "vals", "nums", "arr", "seq")
SCALARS = ("a", "b", "c", "n", "k", "t", "x", "y")
LOCALS = frozenset("ksmvir")  # names that template bodies use themselves

EVAL_SHARE, TRAIN_SHARE = 15, 40  # of 100; the rest is for demonstrations
VALUE_ONLY_SHARE = 0.25  # issues that give one wrong value and no words
VISIBLE_FAILURE_SHARE = 2 / 3  # tasks where a test already in the repository fails
SLOW_SHARE = 0.1  # tasks with a test that really computes for SLOW_S seconds
SLOW_S = (0.1, 0.6)
LINE_S = 6e-8  # CPU time of one executed line, to size the slow tests
VISIBLE_CASES, HIDDEN_CASES = 2, 7


def split_of(text: str) -> str:
    """The split that a mutation site or a package belongs to: train, eval or demo."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % 100
    if bucket < EVAL_SHARE:
        return "eval"
    return "train" if bucket < EVAL_SHARE + TRAIN_SHARE else "demo"


@dataclass(frozen=True)
class Case:
    """One test: the arguments of a call and the value it must have."""

    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class Function:
    """A template with names filled in; `source` is the correct text."""

    template: Template
    name: str
    names: dict[str, str]
    constant: int
    source: str

    @property
    def call_names(self) -> str:
        return ",".join(self.names[p] for p in self.template.parameters)


@dataclass(frozen=True)
class MiniTask:
    """A generated task before it is written down as an instance."""

    package: str
    modules: tuple[str, str]
    functions: tuple[tuple[Function, ...], tuple[Function, ...]]
    target: Function
    mutation: Mutation
    buggy_source: str
    issue: str
    value_only: bool
    cases: dict[str, tuple[Case, ...]]  # function name -> hidden cases, the visible ones first
    failing: frozenset[int]  # the target's cases that fail before the fix
    visible_cases: int  # of the target: its first cases that the repository already tests
    slow: Function | None  # the function that has a test with real work, if one has
    slow_repeats: int

    @property
    def site(self) -> str:
        return site_key(self.target, self.mutation)

    @property
    def module(self) -> str:
        return self.modules[0 if self.target in self.functions[0] else 1]

    @property
    def path(self) -> str:
        return f"{self.package}/{self.module}.py"

    @property
    def visible_failure(self) -> bool:
        return any(i < self.visible_cases for i in self.failing)

    @property
    def difficulty(self) -> str:
        """slow, else by how much the issue and the visible tests give away: easy, medium, hard."""
        if self.slow is not None:
            return "slow"
        return ("hard", "medium", "easy")[(not self.value_only) + self.visible_failure]

    def source_files(self, *, fixed: bool) -> dict[str, str]:
        """Path -> text of the two modules, with the bug or without."""
        files = {}
        for module, functions in zip(self.modules, self.functions, strict=True):
            texts = [
                f.source if fixed or f is not self.target else self.buggy_source for f in functions
            ]
            files[f"{self.package}/{module}.py"] = "\n\n".join(texts) + "\n"
        return files

    def test_files(self, *, hidden: bool) -> dict[str, str]:
        """Path -> text of the test files: the visible ones, or those that come with test_patch."""
        files = {}
        for module, functions in zip(self.modules, self.functions, strict=True):
            names = ", ".join(f.name for f in functions)
            parts = [f"from {self.package}.{module} import {names}\n"]
            for function in functions:
                cases = self.cases[function.name]
                if function is self.target and not hidden:
                    cases = cases[: self.visible_cases]
                for i, case in enumerate(cases):
                    call = f"{function.name}({', '.join(map(repr, case.arguments))})"
                    parts.append(
                        f"def test_{function.name}_{i}():\n    assert {call} == {case.expected!r}\n"
                    )
                if function is self.slow:
                    call = f"{function.name}({', '.join(map(repr, cases[0].arguments))})"
                    parts.append(
                        f"def test_{function.name}_load():\n"
                        f"    for _ in range({self.slow_repeats}):\n        {call}\n"
                        f"    assert {call} == {cases[0].expected!r}\n"
                    )
            files[f"tests/test_{module}.py"] = "\n\n".join(parts)
        return files


def site_key(function: Function, mutation: Mutation) -> str:
    """Where a mutation sits: template, mutated subtree, function name and argument names."""
    kind = f"{function.template.name}:{mutation.old}=>{mutation.new}"
    return f"{kind}|{function.name}({function.call_names})"


def package_key(package: str, files: dict[str, str]) -> str:
    """A package's name and the hash of its fixed content."""
    content = "\0".join(f"{path}\0{files[path]}" for path in sorted(files))
    return f"{package}:{hashlib.sha256(content.encode()).hexdigest()}"


class _Rewrite(ast.NodeTransformer):
    """Replaces the first subtree that equals `old`, in source order, by `new`."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = ast.dump(_pattern(old)), _pattern(new)
        self.done = False

    def visit(self, node: ast.AST) -> ast.AST:
        if not self.done and ast.dump(node) == self.old:
            self.done = True
            return ast.copy_location(self.new, node)
        return super().visit(node)


def _pattern(text: str) -> ast.AST:
    statement = ast.parse(f"def f():\n    {text}").body[0].body[0]  # type: ignore[attr-defined]
    return statement.value if isinstance(statement, ast.Expr) else statement


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str], constant: int) -> None:
        self.names, self.constant = names, constant

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "K":
            return ast.copy_location(ast.Constant(self.constant), node)
        node.id = self.names.get(node.id, node.id)
        return node


def _render(
    template: Template,
    name: str,
    names: dict[str, str],
    constant: int,
    mutation: Mutation | None = None,
) -> str:
    """A function's text, with `mutation` applied to its syntax tree if one is given."""
    parameters = ", ".join(names[p] for p in template.parameters)
    body = "\n".join("    " + line for line in template.body.split("\n"))
    tree: ast.AST = ast.parse(f"def {name}({parameters}):\n{body}")
    if mutation is not None:
        rewrite = _Rewrite(mutation.old, mutation.new)
        tree = rewrite.visit(tree)
        if not rewrite.done:
            raise ValueError(f"template {template.name}: no subtree {mutation.old!r} to mutate")
    text = ast.unparse(ast.fix_missing_locations(_Rename(names, constant).visit(tree)))
    # Python releases differ in the brackets they write around a lone generator argument.
    return re.sub(r"\b(all|any)\(\((.*)\)\)$", r"\1(\2)", text)


def _function(template: Template, rng: random.Random) -> Function:
    names = {"L": rng.choice(LISTS)}
    constant = rng.randint(2, 12)
    free = [s for s in SCALARS if s not in LOCALS]
    names["A"], names["B"], names["C"] = rng.sample(free, 3)
    if template.parameters == "ABC":
        names["B"], names["C"] = "lo", "hi"
    name = f"{rng.choice(template.verbs)}_{rng.choice(NOUNS)}"
    return Function(template, name, names, constant, _render(template, name, names, constant))


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
        outcome = run_function(function.source, function.name, arguments)
        if not isinstance(outcome.value, Failure):
            cases.append(Case(arguments, outcome.value))
    return cases


def _choose_bug(
    functions: Sequence[Function], split: str, rng: random.Random
) -> tuple[Function, Mutation] | None:
    """A mutation whose site belongs to the split; in demonstrations hard ones come up more often."""
    sites = [(f, m) for f in functions for m in f.template.mutations]
    sites = [(f, m) for f, m in sites if split_of(site_key(f, m)) == split]
    if not sites:
        return None
    weights = [m.weight if split == "demo" else 1 for _, m in sites]
    return rng.choices(sites, weights)[0]


def _issue(target: Function, case: Case, got: Outcome, symptom: str | None) -> str:
    if symptom is not None:
        return f"{target.name} {symptom}."
    call = f"{target.name}({', '.join(map(repr, case.arguments))})"
    tail = "got an error." if isinstance(got.value, Failure) else f"got {got.value!r}."
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


def _try_task(split: str, rng: random.Random) -> MiniTask | None:
    package, modules = rng.choice(PACKAGES), tuple(rng.sample(MODULES, 2))
    counts = (rng.randint(2, 4), rng.randint(2, 4))
    weights = [max(m.weight for m in t.mutations) if split == "demo" else 1 for t in TEMPLATES]
    templates: list[Template] = []
    while len(templates) < sum(counts):
        template = rng.choices(TEMPLATES, weights)[0]
        if template not in templates:
            templates.append(template)
    rng.shuffle(templates)
    functions = [_function(t, rng) for t in templates]
    bug = _choose_bug(functions, split, rng)
    if bug is None:
        return None
    target, mutation = bug
    buggy = _render(target.template, target.name, target.names, target.constant, mutation)
    changed = [
        i
        for i, (a, b) in enumerate(zip(target.source.split("\n"), buggy.split("\n"), strict=True))
        if a != b
    ]
    if len(changed) != 1:
        raise ValueError(f"template {target.template.name}: {mutation} changes {changed} lines")
    cases = {
        f.name: _expected_cases(f, HIDDEN_CASES if f is target else VISIBLE_CASES, rng)
        for f in functions
    }
    before = [run_function(buggy, target.name, c.arguments) for c in cases[target.name]]
    failing = [
        isinstance(o.value, Failure) or o.value != c.expected
        for o, c in zip(before, cases[target.name], strict=True)
    ]
    if not any(failing) or len(failing) < HIDDEN_CASES - 2:
        return None
    order, visible = _order_cases(failing, rng.random() < VISIBLE_FAILURE_SHARE, rng)
    shown = next(i for i in order if failing[i])
    symptom = None if rng.random() < VALUE_ONLY_SHARE else rng.choice(mutation.symptoms)
    issue = _issue(target, cases[target.name][shown], before[shown], symptom)
    slow, repeats = None, 0
    if rng.random() < SLOW_SHARE:
        slow = rng.choice([f for f in functions if f is not target and cases[f.name]])
        lines = run_function(slow.source, slow.name, cases[slow.name][0].arguments).lines
        seconds = SLOW_S[0] * (SLOW_S[1] / SLOW_S[0]) ** rng.random()
        repeats = int(round(seconds / (LINE_S * (lines + 2)), -3))
    cases[target.name] = [cases[target.name][i] for i in order]
    failing_set = frozenset(n for n, i in enumerate(order) if failing[i])
    return MiniTask(
        package=package,
        modules=modules,  # type: ignore[arg-type]
        functions=(tuple(functions[: counts[0]]), tuple(functions[counts[0] :])),
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
    """An endless, reproducible stream of tasks of one split, no two with the same site or package."""
    seen: set[str] = set()
    number = 0
    while True:
        rng = random.Random(f"{split}/{seed}/{number}")
        number += 1
        task = _try_task(split, rng)
        if task is None:
            continue
        key = package_key(task.package, task.source_files(fixed=True))
        if split_of(key) != split or key in seen or (split != "demo" and task.site in seen):
            continue
        seen |= {key, task.site}
        yield task
