"""Weights kept at marks of the budget: an evaluation curve that disturbs no schedule.

A mark is a fraction of `budget.limit`. Its weights are the last that were published by then, as the
final ones are the last by the end: a schedule of long updates gains nothing at a mark. They are
kept by a hard link where the file system has them, outside the budget, and evaluated when training
has stopped. The bits of training are the same with and without marks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.budget import Budget
from harness.evaluation import Evaluation


@dataclass(frozen=True)
class Mark:
    """Where the run was when it took its weights for this mark: `spent` in the budget's unit.
    `path` is None for the weights that training began with."""

    mark: float
    spent: float
    updates: int
    version: int
    path: Path | None

    @property
    def phase(self) -> str:
        """The name of its evaluation in evaluation.jsonl."""
        return f"mark-{self.mark:g}"


class Snapshots:
    """The marks of one run. Files lie in `folder`, one per version, whole or not at all."""

    def __init__(self, marks: Sequence[float], folder: Path) -> None:
        self._ahead = list(marks)
        self._folder = folder
        self._files: list[Path] = []
        self._last = Mark(0.0, 0.0, 0, 0, None)  # published
        self.kept: list[Mark] = []

    def offer(self, budget: Budget, path: str, version: int) -> None:
        """Weights have been published: the ones before them are those of the marks that the budget
        has passed since; these are kept for a mark to come."""
        spent = budget.spent
        # Divided, as the marks were written: 0.55 x 100 is more than 55.
        self._take([mark for mark in self._ahead if spent / budget.limit > mark], self._last)
        if not self._ahead:
            self._forget()
            return
        with budget.paused("snapshot"):
            file = self._folder / f"snapshot-{version:06d}.safetensors"
            keep(Path(path), file)
            self._forget()
        self._files.append(file)
        self._last = Mark(0.0, spent, budget.counters.updates, version, file)

    def _forget(self) -> None:
        """The file of the last weights, where no mark has taken it."""
        file = self._last.path
        if file in self._files and all(at.path != file for at in self.kept):
            file.unlink(missing_ok=True)
            self._files.remove(file)

    def end(self, budget: Budget, path: str | None, version: int) -> None:
        """Training has stopped: the marks that no update came after get the last published weights,
        and what was spent in all."""
        self._forget()  # the learner's own file of the same weights is there
        last = None if path is None else Path(path)
        self._take(
            list(self._ahead), Mark(0.0, budget.spent, budget.counters.updates, version, last)
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint; files by name."""
        return {
            "ahead": list(self._ahead),
            "files": [file.name for file in self._files],
            "last": _plain(self._last),
            "kept": [_plain(mark) for mark in self.kept],
        }

    def restore(self, state: Mapping[str, Any], published: Path | None) -> None:
        """The file of the last published weights may be gone: it is made again."""
        self._ahead = list(state["ahead"])
        self._files = [self._folder / name for name in state["files"]]
        self._last = self._mark(state["last"])
        self.kept = [self._mark(mark) for mark in state["kept"]]
        file = self._last.path
        if file is not None and published is not None and not file.exists():
            keep(published, file)

    def _mark(self, plain: Mapping[str, Any]) -> Mark:
        path = plain["path"]
        return Mark(**{**plain, "path": None if path is None else self._folder / path})

    def _take(self, marks: Sequence[float], at: Mark) -> None:
        self.kept += [Mark(mark, at.spent, at.updates, at.version, at.path) for mark in marks]
        self._ahead = [mark for mark in self._ahead if mark not in marks]

    def remove(self) -> None:
        """The files that were kept, not the learner's own."""
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files.clear()

    async def evaluate(
        self,
        path: str | None,
        version: int,
        final: bool,
        load: Callable[[str, int], Awaitable[None]],
        measure: Callable[[str], Awaitable[Evaluation]],
        first: str = "",
        initial: Evaluation | None = None,
    ) -> list[dict[str, Any]]:
        """The curve, a point for each mark, and with `final` the last published weights (`path`,
        which the engine has loaded) at the end. A version is measured once, whatever it stands
        for: that of the `first` weights, before any update, is `initial` where it was measured."""
        measured: dict[int, tuple[str, Evaluation]] = {}
        if initial is not None:
            measured[0] = "initial", initial
        loaded = version
        for at in self.kept:
            if at.version in measured or (final and at.version == version):
                continue
            if at.version != loaded:
                await load(first if at.path is None else str(at.path), at.version)
                loaded = at.version
            measured[at.version] = at.phase, await measure(at.phase)
        if final:
            if path is not None and loaded != version:
                await load(path, version)
            measured[version] = "final", await measure("final")
        return [_point(at, *measured[at.version]) for at in self.kept]


def _plain(mark: Mark) -> dict[str, Any]:
    return asdict(mark) | {"path": None if mark.path is None else mark.path.name}


def _point(at: Mark, phase: str, evaluation: Evaluation) -> dict[str, Any]:
    """One point of summary.json's accuracy.curve; `phase` names its lines in evaluation.jsonl."""
    return {
        "mark": at.mark,
        "spent": at.spent,
        "updates": at.updates,
        "version": at.version,
        "phase": phase,
        "solve_rate": evaluation.solve_rate,
        "standard_error": evaluation.standard_error,
        "pass_at_k": evaluation.pass_at_k,
        "lost": evaluation.lost,
    }


def keep(source: Path, target: Path) -> None:
    """`target` becomes the content of `source`, at once; a file that is there is replaced."""
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        try:
            os.link(source, part)
        except OSError:  # a file system without hard links
            shutil.copyfile(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
