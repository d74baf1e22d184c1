"""Settings of env=simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from environments.protocols import InfrastructureKind, UsageError

KINDS = tuple(kind for kind in get_args(InfrastructureKind) if kind not in ("teacher", "engine"))


@dataclass
class SimulatedConfig:
    """`tasks` of the workload (workload=NAME) are trained on. `failures` are probabilities by kind
    of infrastructure failure: of a sandbox's start (image, start, disk), of each command
    (exec_transport, out_of_memory), of each verification (verifier_timeout, parser)."""

    name: str = "simulated"
    dataset: str = "drawn"
    split: str = "train"
    eval_split: str = "eval"
    tasks: int = 1000
    failures: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    command_timeout_s: float = 86400.0

    def check(self) -> None:
        """Raise UsageError for an impossible value."""
        if self.tasks < 1:
            raise UsageError(f"env.tasks={self.tasks}: must be 1 or more")
        if not self.command_timeout_s > 0:
            raise UsageError(
                f"env.command_timeout_s={self.command_timeout_s} must be above 0 seconds"
            )
        for kind, probability in self.failures.items():
            if kind not in KINDS:
                raise UsageError(f"env.failures.{kind}: no such kind; there is: {', '.join(KINDS)}")
            if not 0 <= probability <= 1:
                raise UsageError(f"env.failures.{kind}={probability}: must be from 0 to 1")
