"""A generated mini task: its functions, files and tests, and the split it belongs to.

Splits are disjoint by construction. A task's mutation site (template, mutation, function and
argument names) and its package (name and content) are hashed, and a hash belongs to exactly one
split: 15 % to eval, 40 % to train, the rest to the demonstrations of the warm start. The generator
keeps a task only where both of its hashes belong to the split that was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments.swebench.mini.templates import Mutation, Template

EVAL_SHARE, TRAIN_SHARE = 15, 40  # of 100; the rest is for demonstrations


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
class Package:
    """Two modules of functions, all of them correct."""

    name: str
    modules: tuple[str, str]
    functions: tuple[tuple[Function, ...], tuple[Function, ...]]

    @property
    def all_functions(self) -> list[Function]:
        return [f for functions in self.functions for f in functions]

    def files(self, changed: Mapping[str, str] | None = None) -> dict[str, str]:
        """Path -> text of the modules; `changed` replaces the texts of functions by name."""
        files = {}
        for module, functions in zip(self.modules, self.functions, strict=True):
            texts = [(changed or {}).get(f.name, f.source) for f in functions]
            files[f"{self.name}/{module}.py"] = "\n\n".join(texts) + "\n"
        return files

    @property
    def key(self) -> str:
        """The package's name and the hash of its content."""
        content = "\0".join(f"{path}\0{text}" for path, text in sorted(self.files().items()))
        return f"{self.name}:{hashlib.sha256(content.encode()).hexdigest()}"


@dataclass(frozen=True)
class MiniTask:
    """A generated task before it is written down as an instance."""

    package: Package
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
        return self.package.files(None if fixed else {self.target.name: self.buggy_source})

    def test_files(self, *, hidden: bool) -> dict[str, str]:
        """Path -> text of the test files: the visible ones, or those that come with test_patch."""
        files = {}
        for module, functions in zip(self.package.modules, self.package.functions, strict=True):
            names = ", ".join(f.name for f in functions)
            parts = [f"from {self.package.name}.{module} import {names}\n"]
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
