"""One job of `harness.run`: config in, a run's folder with a summary out, whatever happens."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from harness import composition, continuation, fit, multirun
from harness.cluster.protocol import WorkerEnded
from harness.config import Config
from harness.interrupt import Interrupted, hand_back, signals_raise
from harness.protocols import InfrastructureError, UsageError
from harness.validation import check_trains, validate

log = logging.getLogger(__name__)

EXECUTE = "harness.experiment:execute"
folders: list[Path] = []  # this process's jobs, in order


class JobFailed(RuntimeError):
    """A job that ended in an error, in words alone: it can be sent between a sweep's processes."""


def check(config: Config) -> None:
    """Raises UsageError for what `harness.run` cannot run."""
    validate(config)
    if config.env.split == config.env.eval_split:
        raise UsageError(
            f"env.split={config.env.split}: training would see the held-out tasks; "
            "take another split than env.eval_split"
        )
    check_trains(config, "harness.run")
    fit.check(config)


def run(node: DictConfig) -> None:
    """Run one job. Raises UsageError (alone, not in a sweep), Interrupted or JobFailed."""
    alone = HydraConfig.get().mode != RunMode.MULTIRUN
    config = composition.build(node)
    folder = Path(HydraConfig.get().runtime.output_dir)
    folders.append(folder)
    try:
        with (
            contextlib.nullcontext() if alone else multirun.under_way(folder),
            signals_raise(multirun.pass_on),
        ):
            check(config)
            launcher = HydraConfig.get().runtime.choices.get("launcher")
            if alone and launcher is not None:
                raise UsageError(f"launcher={launcher}: starts the jobs of a sweep; add -m")
            if not alone and config.resume not in (None, continuation.AUTO):
                raise UsageError(
                    f"resume={config.resume}: a sweep has a folder for each job; take resume=auto "
                    "with hydra.sweep.dir=DIR of the sweep that is to go on"
                )
            _execute(config, folder)
    except Interrupted as interrupted:
        _leave_summary(config, folder, "interrupted")
        if way_on := continuation.way_on(folder, sys.argv[1:], not alone):
            interrupted.add_note(way_on)
        hand_back(interrupted)
        raise
    except UsageError as error:
        _leave_summary(config, folder, "failed")
        if alone:
            raise
        raise _failed(str(error), folder, alone) from None
    except (InfrastructureError, WorkerEnded) as error:  # nothing that a trace would explain
        _leave_summary(config, folder, "failed")
        raise _failed(str(error), folder, alone, resumable=True) from None
    except Exception as error:
        # The one place where every error of a run ends: it is logged whole and the sweep goes on.
        log.exception("the run failed; its folder is %s", folder)
        _leave_summary(config, folder, "failed")
        said = f"{type(error).__name__}: {error}"
        raise _failed(said, folder, alone, resumable=True) from None


def _failed(said: str, folder: Path, alone: bool, resumable: bool = False) -> JobFailed:
    """Of a sweep's errors only the first comes out at its end: each is logged."""
    way_on = continuation.way_on(folder, sys.argv[1:], not alone) if resumable else ""
    line = f"{said}; {way_on}" if way_on else said
    if not alone:
        log.error("%s: %s", folder.name, line)
    return JobFailed(line)


def _execute(config: Config, folder: Path) -> dict[str, Any]:
    from harness.cluster.worker import load
    from harness.display import Display

    with Display(sys.stderr) as display:
        return load(EXECUTE)(config, folder, display)


def _leave_summary(config: Config, folder: Path, status: str) -> None:
    from harness.records import Records, blank_summary

    if not (folder / "summary.json").exists():
        Records(folder).summary(blank_summary(config) | {"status": status})
