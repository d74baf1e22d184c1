"""Around Hydra's main: exit codes, one line for a mistake, the closing line or table.

Exit codes: 0 finished; 2 a configuration or usage error; 1 any other failure; 130 and 143 after a
signal and its clean-up.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.interrupt import Interrupted, signals_raise
from harness.protocols import InfrastructureError, UsageError


def fail(line: str) -> None:
    """One line on standard error, whatever the console can encode."""
    encoding = sys.stderr.encoding or "ascii"
    text = line.encode(encoding, errors="backslashreplace").decode(encoding)
    print(f"error: {text}", file=sys.stderr, flush=True)


def main(
    task: Callable[[Any], None],
    check: Callable[[Config], None],
    config_name: str,
    close: Callable[[bool], None],
) -> int:
    """Run `task` under Hydra with this process's arguments; `close(sweep)` prints the end. `check`
    sees a single run's config before its folder is made.

    `task` raises UsageError for 2 and `harness.job.JobFailed` for 1; `close` is called where a job
    began.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from harness import composition, job, launching, multirun

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched at run time
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    code = 0
    with signals_raise(multirun.pass_on):
        try:
            _hydra(task, check, config_name)
        except Interrupted as interrupted:
            code = interrupted.exit_code
            notes = getattr(interrupted, "__notes__", [])  # how to go on
            fail("; ".join([f"interrupted by signal {interrupted.signum}", *notes]))
        except UsageError as error:
            code = 2
            fail(str(error))
        except job.JobFailed as error:
            code = 1
            fail(str(error))
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            code = 2
            fail(composition.explain(error))
        except RuntimeError as error:
            line = launching.explain(error)
            if line is None:
                raise
            code = 1
            fail(line)
    sweep = multirun.current()
    if sweep is not None:
        sweep.close({0: "finished", 130: "interrupted", 143: "interrupted"}.get(code, "failed"))
    if sweep is not None or job.folders:
        close(sweep is not None)
    return code


def _hydra(task: Callable[[Any], None], check: Callable[[Config], None], config_name: str) -> None:
    import hydra

    from harness import composition

    composition.register()
    arguments = sys.argv[1:]
    if not any(argument.startswith("-") for argument in arguments):
        # A single run is checked before Hydra makes its folder.
        check(composition.compose(arguments, config_name))
    hydra.main("pkg://configs", config_name, version_base="1.3")(task)()


def guarded(body: Callable[[], None], usage: str | None) -> int:
    """Run an entry point that is no Hydra main; every way to end is an exit code and one line.
    `--help` and `-h` print `usage`, the module's docstring."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print((usage or "").strip())
        return 0
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from harness import composition

    try:
        with signals_raise():
            body()
    except Interrupted as interrupted:
        fail(f"interrupted by signal {interrupted.signum}")
        return interrupted.exit_code
    except UsageError as error:
        fail(str(error))
        return 2
    except (HydraException, OmegaConfBaseException) as error:
        fail(composition.explain(error))
        return 2
    except InfrastructureError as error:
        fail(str(error))
        return 1
    return 0


def settings(
    arguments: Sequence[str], known: Sequence[str], needed: Sequence[str], usage: str
) -> dict[str, str]:
    """KEY=VALUE arguments of a command without Hydra. Raises UsageError for an unknown or a missing
    key."""
    found: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in known:
            raise UsageError(f"{argument}: no such setting; there is: {', '.join(known)}")
        found[key] = value
    for key in needed:
        if not found.get(key):
            raise UsageError(f"{key}: missing; {usage}")
    return found


def closing_line(value: Any) -> None:
    """The last line of standard output: one JSON value."""
    print(json.dumps(value, allow_nan=False), flush=True)


def load_summaries(folders: Sequence[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """(path, content) of the summaries that there are, in the folders' order."""
    paths = [folder / "summary.json" for folder in folders]
    return [(path, json.loads(path.read_text())) for path in paths if path.exists()]
