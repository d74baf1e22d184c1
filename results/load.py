"""Runs from folders or from MLflow, the names they go by, and whether they are one comparison.

Whatever is not a whole, finished run is named, with the reason, and left out.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from results.runs import Run, read_updates, without_nan

REQUIRED = ("status", "schedule", "seed", "budget", "time", "idle", "staleness", "accuracy")
# What a schedule owns: these may differ within a comparison (docs/results.md).
OWNED = ("schedule.", "ledger.", "parity.")
# What a run is called, and where it is written down.
BOOKKEEPING = ("seed", "tracking.", "hardware.", "resume", "checkpoint.", "experiment")
# What the summary says a run was, and the group of the configuration that lets it vary.
FOUND = {
    "sandbox": "sandbox", "clock": "clock", "engine": "engine", "hardware": "hardware",
    "policy": "policy", "env": "env", "dataset": "env",
}  # fmt: skip
_FILES = {"summary.json", "updates.csv", "manifest.json"}
_SHOWN = 3


@dataclass(frozen=True)
class LeftOut:
    """A run that is not part of the comparison, and why. `under_way`: it may still end well."""

    name: str
    why: str
    under_way: bool = False
    folder: Path | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


@dataclass
class Loaded:
    """What lay at `source`. `swept`: keys that the sweep itself declares to vary."""

    source: str
    runs: list[Run] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    swept: set[str] = field(default_factory=set)

    @property
    def under_way(self) -> list[LeftOut]:
        return [left for left in self.left_out if left.under_way]


def load(source: str | Path, uri: str | None = None) -> Loaded:
    """The runs below a folder; or of an MLflow experiment, by its name (EXPERIMENT/PARENT: the
    children of that parent run alone), in the store at `uri`. Raises ValueError where there is
    neither."""
    folder = Path(source)
    if uri is None and folder.is_dir():
        return from_folder(folder)
    if uri is None and not Path("mlflow.db").is_file():
        raise ValueError(
            f"runs={source}: no such folder, and no MLflow store to look for an experiment in; "
            "name it by uri=sqlite:///FILE or uri=http://HOST:PORT"
        )
    from results.mlflow_source import from_mlflow

    return from_mlflow(str(source), uri or f"sqlite:///{Path('mlflow.db').absolute()}")


def from_folder(folder: Path) -> Loaded:
    """Every run below `folder`, itself included."""
    loaded = Loaded(str(folder))
    for where in sorted(_run_folders(folder)):
        name = str(where.relative_to(folder)) if where != folder else where.name
        path = where / "summary.json"
        if not path.is_file():
            done = len(read_updates(_there(where / "updates.csv")))
            loaded.left_out.append(
                LeftOut(name, f"no summary.json after {done} updates: under way, or killed",
                        under_way=True, folder=where)
            )  # fmt: skip
            continue
        run = read(name, path.read_text(encoding="utf-8", errors="replace"), lambda w=where: w)
        if isinstance(run, Run):
            run.manifest = read_object(where / "manifest.json")
            run.settings = settings(where, run.manifest)
            loaded.runs.append(run)
        else:
            loaded.left_out.append(run)
    for path in sorted(folder.glob("**/multirun.yaml")):
        loaded.swept |= _swept(path)
    return loaded


def read(name: str, text: str, fetch: Any) -> Run | LeftOut:
    """A run from the text of its summary.json."""
    if not text.strip():
        return LeftOut(name, "summary.json is empty")
    try:
        summary = json.loads(text)
    except ValueError:
        return LeftOut(name, "summary.json is not JSON: half-written")
    if not isinstance(summary, dict):
        return LeftOut(name, "summary.json is no object")
    missing = [key for key in REQUIRED if key not in summary]
    if missing:
        return LeftOut(name, f"summary.json lacks {', '.join(missing)}: not of this harness")
    if summary["status"] != "finished":
        return LeftOut(name, f"status {summary['status']}")
    odd: list[str] = []
    summary = without_nan(summary, "", odd)
    notes = [f"not a number, not used: {', '.join(odd)}"] if odd else []
    return Run(name, summary, notes=notes, fetch=fetch)


def settings(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration, dotted keys to leaves; empty where the run has left none."""
    if isinstance(manifest.get("config"), Mapping):
        return dict(leaves(manifest["config"]))
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        return {}
    found = yaml.safe_load(path.read_text("utf-8"))
    return dict(leaves(found)) if isinstance(found, Mapping) else {}


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def name(run: Run) -> str:
    """The schedule as people call it."""
    found = run.summary["schedule"]
    if found == "stream":
        found += f", release={run.summary['release']}"
    if run.summary.get("placement") == "colocated":
        found += ", colocated"
    if found == "async":
        violations = run.get("staleness", "violations")
        found += f", max_staleness={violations['bound']}" if violations else ""
    return found


def labels(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its schedule, and whatever else differs between the runs of that
    name and budget, but for the seed. Only seeds are averaged over."""
    alike: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        alike[*run.budget, name(run)].append(run)
    differing = {key: _varied(group) for key, group in alike.items()}
    found = []
    for run in runs:
        keys = differing[*run.budget, name(run)]
        found.append(", ".join([name(run), *(f"{k}={run.settings.get(k)}" for k in keys)]))
    return found


def _varied(runs: Sequence[Run]) -> list[str]:
    """Keys of the configuration in which they differ, but for names and places."""
    keys = sorted({key for run in runs for key in run.settings})
    return [
        key
        for key in keys
        if not key.startswith(BOOKKEEPING)
        and len({repr(run.settings.get(key)) for run in runs}) > 1
    ]


def shared_settings(runs: Sequence[Run]) -> list[str]:
    """What was varied and belongs to no schedule: two runs can be paired where these are equal."""
    return [key for key in _varied(runs) if not key.startswith(OWNED) and key != "budget.limit"]


def check_comparable(runs: Sequence[Run], swept: Iterable[str] = ()) -> None:
    """Raises ValueError where runs differ in more than what a schedule owns, the seed and the keys
    swept on purpose, naming the keys, and two runs for each."""
    allowed = tuple(swept)

    def free(key: str) -> bool:
        return key.startswith(OWNED) or any(
            key == name or key.startswith(f"{name}.") for name in allowed
        )

    configured = [run for run in runs if run.settings]
    wrong = [
        _difference(key, [(run, run.settings.get(key)) for run in configured])
        for key in _varied(configured)
        if not free(key)
    ]
    groups = {key.split(".")[0] for key in allowed}
    for key, group in FOUND.items():
        values = [(run, run.summary.get(key)) for run in runs]
        if len({repr(v) for _, v in values}) > 1 and group not in groups:
            wrong.append(_difference(key, values))
    counts = [(run, (run.summary.get("devices") or {}).get("total")) for run in runs]
    if len({n for _, n in counts if n is not None}) > 1 and not free("devices"):
        wrong.append(_difference("devices", counts))
    if wrong:
        raise ValueError(
            "not one comparison, the runs differ in more than schedule and seed: "
            f"{'; '.join(wrong)}. Take runs that are equal there, or say what was varied on "
            "purpose: vary=KEY,KEY"
        )


def by_label(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Label -> seed -> run, for pairs of one seed. Raises ValueError for a seed that is there
    twice."""
    found: dict[str, dict[int, Run]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        if found.setdefault(label, {}).setdefault(run.seed, run) is not run:
            raise ValueError(f"{run.name}: seed {run.seed} of {label} is there twice")
    return found


def meant(key: str, value: str, there: Iterable[str]) -> str:
    """The one label that is called so, or whose schedule is. Raises ValueError, `key` in front."""
    known = sorted(there)
    alike = [n for n in known if n == value] or [n for n in known if n.split(",")[0] == value]
    if len(alike) != 1:
        raise ValueError(f"{key}={value}: one of {'; '.join(known)} is needed")
    return alike[0]


def _difference(key: str, values: Sequence[tuple[Run, Any]]) -> str:
    examples = {repr(value): (value, run.name) for run, value in reversed(values)}
    shown = sorted((str(value), where) for value, where in examples.values())
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{key} ({', '.join(f'{v} in {where}' for v, where in shown[:_SHOWN])}{more})"


def unchecked(runs: Sequence[Run]) -> list[str]:
    """Lines about what no check could see, and what it let pass."""
    bare = [run.name for run in runs if not run.settings]
    found = [f"no configuration left, not compared: {', '.join(bare)}"] if bare else []
    states = [run.manifest.get("git") or {} for run in runs]
    commits = {str(state["commit"]) for state in states if state.get("commit")}
    if len(commits) > 1:
        found.append(f"the runs are of {len(commits)} commits: {', '.join(sorted(commits))}")
    dirty = sum(bool(state.get("dirty")) for state in states)
    if dirty:
        found.append(f"files differed from the commit in {dirty} of {len(runs)} runs")
    return found + [f"{run.name}: {note}" for run in runs for note in run.notes]


def _run_folders(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        if _FILES & set(files) or ".hydra" in folders:
            yield Path(where)
            folders.clear()  # what lies in a run is the run's
        else:
            folders[:] = [f for f in folders if not f.startswith(".")]


def _swept(multirun: Path) -> set[str]:
    """The keys that a sweep's command or its experiment lets vary."""
    try:
        hydra = yaml.safe_load(multirun.read_text(encoding="utf-8"))["hydra"]
        given = [o.split("=", 1) for o in hydra["overrides"]["task"]]
    except (yaml.YAMLError, KeyError, TypeError):
        return set()
    found = {key for key, *value in given if value and _several(value[0])}
    return found | set((hydra.get("sweeper") or {}).get("params") or {})


def _several(value: str) -> bool:
    """Whether Hydra's sweeper takes it for more than one value."""
    depth = 0
    for character in value:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            return True
    return value.startswith(("range(", "choice(", "glob("))


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None


def read_object(path: Path) -> dict[str, Any]:
    """An object, or an empty one: a manifest is no figure."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
