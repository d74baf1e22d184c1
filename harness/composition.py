"""From Hydra's node to the config dataclasses, and from Hydra's errors to one clear line."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from harness import continuation, launching
from harness.cluster.worker import load
from harness.config import Config, flatten
from harness.protocols import UsageError
from harness.validation import keys

SCHEMAS = "configs.schemas:register"  # harness may not import configs


def free_folder(path: str, resume: str | None = None) -> str:
    """The folder of the run that `resume` names; else `path`, or `path-2`, `path-3` ... where
    another run of the same second has taken it already. The folder is made here, because making it
    is what takes the name."""
    if resume not in (None, continuation.AUTO):
        return str(continuation.run_folder(resume))
    parent = Path(path).parent
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        candidate = Path(path if number == 1 else f"{path}-{number}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return str(candidate)
    raise UsageError(f"hydra.run.dir={path}: ten thousand runs have taken this name already")


def by_schedule(name: str, values: DictConfig) -> Any:
    """A setting that each schedule has its own value of. Raises UsageError for a schedule that has
    none."""
    if name not in values:
        raise UsageError(
            f"schedule={name}: this experiment has settings for {', '.join(map(str, values))} "
            "alone; take one of them"
        )
    return values[name]


# At import: a sweep's worker processes import this module before they read the config.
OmegaConf.register_new_resolver("free_folder", free_folder, use_cache=True, replace=True)
OmegaConf.register_new_resolver("by_schedule", by_schedule, replace=True)
OmegaConf.register_new_resolver("slurm_gpus", launching.gpus, replace=True)
OmegaConf.register_new_resolver("slurm_cpus", launching.cpus, replace=True)


def register() -> None:
    """Make the schemas known to Hydra; once per process, before anything is composed."""
    load(SCHEMAS)()


def build(node: DictConfig) -> Config:
    """The typed config behind a composed node. Raises OmegaConf's errors for missing values, and
    UsageError for a key that `+key=value` added."""
    if "hydra" in node:
        node = copy.deepcopy(node)  # a masked copy would forget the schema
        with read_write(node), open_dict(node):
            del node["hydra"]
    config = cast(Config, OmegaConf.to_object(node))
    declared = dict(flatten(config))
    named = tuple(f"{key}." for key, value in declared.items() if isinstance(value, dict))
    for key in _leaves(OmegaConf.to_container(node)):
        if key not in declared and not key.startswith(named):
            raise UsageError(_unknown_key(key))
    return config


def _leaves(container: Any, prefix: str = "") -> Iterator[str]:
    for key, value in container.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def compose(overrides: list[str], config_name: str = "config") -> Config:
    """The config of a single run, as the command line would make it."""
    import hydra

    register()
    with hydra.initialize_config_module("configs", version_base="1.3"):
        return build(hydra.compose(config_name, overrides=overrides))


def recorded(folder: Path) -> Config:
    """The config of a run that has been, from its `.hydra` folder; keys that are newer than the run
    take their defaults."""
    from hydra.core.config_store import ConfigStore

    register()
    node = OmegaConf.load(folder / ".hydra" / "config.yaml")
    environments: Any = ConfigStore.instance().repo["schema"]["env"]
    schema = OmegaConf.merge(
        OmegaConf.structured(Config), {"env": environments[f"{node.env.name}.yaml"].node}
    )
    return build(cast(DictConfig, OmegaConf.merge(schema, node)))


def explain(error: Exception) -> str:
    """One line for a composition error: the key or option, what is wrong, what there is instead."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_option(error)
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__
    relevant = [e for e in chain if isinstance(e, HydraException | OmegaConfBaseException)]
    text = "\n".join(str(e) for e in relevant) or str(error)
    unknown = re.search(r"Key '([^']*)' is not in struct\s+full_key: (\S+)", text) or re.search(
        r"Key '([^']*)' not in '[^']*'\s+full_key: (\S+)", text
    )
    if unknown:
        return _unknown_key(unknown.group(2))
    text = text.replace("UsageError raised while resolving interpolation: ", "")
    lines = dict.fromkeys(line.strip() for line in text.splitlines())
    noise = ("full_key:", "object_type=", "reference_type=", "See https")
    return "; ".join(line for line in lines if line and not line.startswith(noise))


def _missing_option(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    if group == "hydra/launcher" and (line := launching.missing(option)):
        return line
    there = ", ".join(sorted(error.options or ()))
    if not group:
        return f"{option}: no such configuration file"
    return f"{group}={option}: no such option; there is: {there or 'none'}"


def _unknown_key(key: str) -> str:
    known = keys(Config) + [f"env.{name}" for name in _environment_keys()]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "; `--help` lists them"
    return f"{key}: no such key{hint}"


def _environment_keys() -> set[str]:
    from hydra.core.config_store import ConfigStore

    names: set[str] = set()
    store: Any = ConfigStore.instance().repo.get("schema", {})
    for entry in store.get("env", {}).values():
        names |= {str(name) for name in entry.node}
    return names
