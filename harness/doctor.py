"""What this machine can run, and what is missing: python -m harness.doctor.

With settings (python -m harness.doctor policy=smollm2 schedule.release=submit ...): whether a run
with them fits into this machine's memory, or into that of the hardware they name (hardware=8xh100),
and the largest ledger.max_open_groups that would. A table on a terminal, else one JSON line; exit
code 1 where the main job cannot run, or those settings do not fit.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments.sandbox.images import MINI_IMAGE
from harness import hardware
from harness.config import TrackingConfig
from harness.entry import closing_line, guarded
from harness.fit import Fit
from harness.manifest import versions
from harness.protocols import InfrastructureError, SandboxSpec, UsageError

_DISK_BYTES = 1 << 30
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class Finding:
    """One check. `needed` says that the main job cannot run without it; `fix` is the way out."""

    name: str
    ok: bool
    detail: str
    needed: bool = False
    fix: str = ""


def python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("python", ok, platform.python_version(), True, "install Python 3.11 or newer")


def torch() -> Finding:
    try:
        module = importlib.import_module("torch")
    except ImportError as error:
        return Finding("torch", False, str(error), True, "pip install -r requirements-cpu.txt")
    return Finding("torch", True, module.__version__, True)


def cpu() -> Finding:
    return Finding("cpu", True, f"{hardware.cores()} cores, {hardware.cpu_model()}")


def memory() -> Finding:
    total = hardware.memory_bytes()
    return Finding(
        "memory", total >= _MEMORY_BYTES, f"{total / 2**30:.1f} GiB", False,
        "4 GiB are enough for policy=tiny",
    )  # fmt: skip


def gpu() -> Finding:
    found = hardware.gpus()
    return Finding("gpu", bool(found), ", ".join(found) or "none", False, "not needed here")


def disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    return Finding(
        "disk", free >= _DISK_BYTES, f"{free / 2**30:.1f} GiB free in {Path.cwd()}", True,
        "free 1 GiB, or start from another folder",
    )  # fmt: skip


def docker() -> Finding:
    from environments.sandbox.select import docker_trouble

    image = MINI_IMAGE
    trouble = docker_trouble(image, build=False)
    detail = trouble or f"an engine answers and has the image {image}"
    return Finding("docker", not trouble, detail, False, "or use sandbox=bubblewrap")


def bubblewrap() -> Finding:
    from environments.sandbox.bubblewrap import find_bwrap
    from environments.sandbox.select import bubblewrap_trouble

    path = find_bwrap()
    trouble = bubblewrap_trouble(path)
    return Finding("bubblewrap", not trouble, trouble or str(path), False, "as it says, or docker")


def sandbox(kind: str) -> Finding:
    """One real sandbox, started, used and removed."""
    try:
        detail = asyncio.run(_one_sandbox(kind))
    except (UsageError, InfrastructureError) as error:
        return Finding("sandbox", False, str(error), True, "see docker and bubblewrap above")
    return Finding("sandbox", True, detail, True)


async def _one_sandbox(kind: Any) -> str:
    from environments.sandbox.select import open_provider

    provider = await open_provider(
        kind, image=MINI_IMAGE, run_id=f"doctor-{os.getpid()}", max_parallel=1
    )
    try:
        box = await provider.start(SandboxSpec(MINI_IMAGE))
        result = await box.exec("echo $((6 * 7))", timeout_s=10)
        await box.stop()
    finally:
        await provider.close()
    if result.output.strip() != "42" or provider.counters.leaked:
        raise InfrastructureError("exec_transport", f"it answered {result.output[:80]!r}")
    return f"{provider.kind} ran a command in {result.duration_s * 1000:.0f} ms"


def policy() -> Finding:
    from harness.policy.load import resolve

    folder = resolve("tiny")
    ok = (folder / "config.json").is_file()
    return Finding("policy tiny", ok, str(folder), True, "reinstall: its weights are bundled")


def dataset(name: str, split: str, needed: bool, fix: str) -> Finding:
    from environments.swebench.config import SweBenchConfig
    from environments.swebench.source import open_source

    title = f"dataset {name}"
    try:
        count = len(open_source(SweBenchConfig(dataset=name)).instances(split))
    except (UsageError, OSError) as error:
        return Finding(title, False, str(error), needed, fix)
    return Finding(title, True, f"{count} {split} tasks", needed)


def tracking() -> Finding:
    from harness.mlflow_store import Store, default_uri

    uri = default_uri()
    try:
        writable = os.access(Path.cwd(), os.W_OK)
        if Path(uri.removeprefix("sqlite:///")).exists():
            Store(TrackingConfig())
    except Exception as error:  # whatever MLflow or SQLite says, it belongs into the table
        return Finding("mlflow", False, str(error), False, "use tracking=none")
    return Finding("mlflow", writable, uri, False, "start from a writable folder, or tracking=none")


def examine() -> list[Finding]:
    """Every check, cheap ones first."""
    checks: list[Callable[[], Finding]] = [
        python, torch, cpu, memory, gpu, disk, policy,
        lambda: dataset("mini", "eval", True, "reinstall: it is bundled"),
        lambda: dataset("pypi", "eval", False, "python -m environments.swebench.pypi"),
        tracking, docker, bubblewrap,
    ]  # fmt: skip
    findings = [check() for check in checks]
    engine = next(f for f in findings if f.name == "docker")
    return [*findings, sandbox("docker" if engine.ok else "bubblewrap")]


def _print_table(findings: list[Finding]) -> None:
    from rich.box import ASCII
    from rich.console import Console
    from rich.table import Table

    table = Table("", "what", "found", "way out", box=ASCII)
    for finding in findings:
        mark = "ok" if finding.ok else "MISSING" if finding.needed else "-"
        table.add_row(mark, finding.name, finding.detail, "" if finding.ok else finding.fix)
    Console(highlight=False, markup=False, emoji=False).print(table)


def _fits(settings: list[str]) -> int:
    """Whether a run with these settings fits."""
    code = 0

    def body() -> None:
        nonlocal code
        from harness import composition, fit
        from harness.policy.load import resolve
        from harness.policy.size import policy_size

        config = composition.compose(settings)
        size = policy_size(resolve(config.policy.path or config.policy.name))
        found = fit.fit(config, size)
        code = 0 if found.fits else 1
        if sys.stdout.isatty():
            _print_fit(size.parameters, found)
        else:
            closing_line({"ok": found.fits, "parameters": size.parameters, **found.report()})

    return guarded(body, __doc__) or code


def _print_fit(parameters: int, found: Fit) -> None:
    from rich.box import ASCII
    from rich.console import Console
    from rich.table import Table

    table = Table("process", "what", "MB", box=ASCII)
    own = found.footprint
    rows = [("learner", *item) for item in own.learner.items()]
    rows += [("ledger", f"{own.plan.open_groups} open groups at most", own.ledger)]
    for process, what, size in [*rows, *(("engine", *item) for item in own.engine.items())]:
        if size:
            table.add_row(process, what, f"{size / 1e6:,.0f}")
    Console(highlight=False, markup=False, emoji=False).print(table)
    report = found.report()
    print(
        f"{parameters:,} parameters, {own.processes} learner process(es): "
        f"{report['needed_bytes'] / 1e9:.2f} GB in the memory of {found.room.where}, "
        f"{found.room.free_bytes / 1e9:.2f} GB free: {'fits' if found.fits else 'DOES NOT FIT'}"
    )
    if found.max_open_groups is not None:
        print(f"the largest ledger.max_open_groups that fits: {found.max_open_groups}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.doctor", description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as for harness.run")
    given = parser.parse_args().settings
    if given:
        return _fits(given)
    findings = examine()
    ok = all(finding.ok for finding in findings if finding.needed)
    if sys.stdout.isatty():
        _print_table(findings)
        print("the main job can run" if ok else "the main job cannot run yet")
    else:
        closing_line({"ok": ok, "checks": [asdict(f) for f in findings], "versions": versions()})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
