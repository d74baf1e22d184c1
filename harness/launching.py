"""What a job of a sweep asks a cluster's scheduler for: resolvers of configs/launcher/, and the
errors of its plugin (docs/slurm.md). Nothing of the plugin is imported here."""

from __future__ import annotations

from harness.protocols import UsageError

INSTALL = "pip install -c constraints.txt -e '.[slurm]'"
_PLUGIN = "submitit"


def _devices(placement: str, engine: int, learner: int) -> int:
    """Of one run; colocated, engine and learner have the same ones."""
    return engine if placement == "colocated" else engine + learner


def gpus(device: str, placement: str, engine: int, learner: int, per_node: int) -> int | None:
    """Of a job; None where it runs on CPUs. Raises UsageError for more than a node has: a run's
    processes are all on one, unless a Ray cluster spans several."""
    total = _devices(placement, engine, learner)
    if device != "cuda":
        return None
    if total > per_node:
        raise UsageError(
            f"schedule.engine_devices={engine} schedule.learner_devices={learner}: a job of "
            f"launcher=slurm has one node of {per_node} GPUs; take fewer, or start a Ray cluster "
            "over several nodes and run there with cluster=ray"
        )
    return total


def cpus(device: str, placement: str, engine: int, learner: int, per_gpu: int) -> int:
    """Cores of a job: a device is one of them, or brings some with it for its processes and the
    sandboxes beside them."""
    return _devices(placement, engine, learner) * (per_gpu if device == "cuda" else 1)


def missing(option: str) -> str | None:
    """The line for a launcher of a plugin that is not installed; None for any other option."""
    if not option.startswith(_PLUGIN):
        return None
    return f"hydra/launcher={option}: the launcher's plugin is not installed; {INSTALL}"


def explain(error: BaseException) -> str | None:
    """One line for an error of the launcher itself; None for anything else."""
    if type(error).__module__.partition(".")[0] != _PLUGIN:
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    said = lines[0] if len(lines) < 2 else f"{lines[0]} {lines[-1]}"
    return f"launcher: {said} (its logs are in .submitit in the sweep's folder)"
