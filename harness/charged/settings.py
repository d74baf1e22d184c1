"""clock=virtual with a real environment: what such a run can be, and what contradicts it."""

from __future__ import annotations

from harness.config import Config, lookup
from harness.costs.select import settle_split
from harness.learner.placement import Placement
from harness.protocols import UsageError

# Of the real learner, whatever the hardware's is: one process, one thread, and passes of so many
# padded tokens, which was measured best on a CPU core.
PLACEMENT = Placement(chunk_tokens=2048)
THREADS = 1
WITH = "clock=virtual with a real environment"
# key -> (the only value, why)
_ONLY = {
    "env.name": ("swebench", "its verifier judges a diff, and so do the times of a workload"),
    "engine.name": ("torch", "real tasks need real tokens"),
    "learner.name": ("torch", "real tokens have real gradients"),
    "agent.name": ("policy", "scripts have no tokens"),
    "objective.name": ("grpo", "a teacher has no cost model"),
    "workload.trace": (None, "how many turns there are is the policy's"),
    "schedule.partial_rollout": (False, "a turn is sampled whole, with one version's weights"),
    "rollout.tool_wait.median_s": (0.0, "workload.tool_s says what tool calls take"),
    "rollout.history_turns": (None, "a rewritten context has no times"),
    "cluster.pin_cores": (False, "one thread each is all that there is"),
    "policy.lora.rank": (0, "costs are those of training every weight"),
    "learner.parallel": ("ddp", "ranks take whole trajectories"),
    "learner.device": ("cpu", "bits must not depend on the machine"),
}
# key -> (a value that it cannot have, why, the way out)
_NEVER = {
    "policy.name": ("simulated", "real tasks need real tokens", "take policy=tiny"),
    "sandbox.kind": ("simulated", "commands are executed", "take sandbox=bubblewrap"),
    "schedule.release": (
        "turn", "what turns cost would be measured on this machine",
        "take schedule.release=submit",
    ),
}  # fmt: skip


def asked(config: Config) -> bool:
    """Whether real learning is charged virtual time."""
    return config.clock.kind == "virtual" and config.env.name != "simulated"


def settle(config: Config) -> None:
    """Check the settings of such a run and fill in what its hardware says: engine.replicas and
    learner.ranks. Raises UsageError."""
    for key, (only, why) in _ONLY.items():
        found = lookup(config, key)
        if found != only:
            raise UsageError(f"{key}={found}: {WITH} takes {only} alone: {why}")
    for key, (never, why, way_out) in _NEVER.items():
        if lookup(config, key) == never:
            raise UsageError(f"{key}={never}: not under {WITH}: {why}; {way_out}")
    if config.schedule.release == "auto":
        raise UsageError(
            f"schedule.release=auto: not under {WITH}: it plans with the policy's own tokens, "
            "which are not what is charged; take schedule.release=reward"
        )
    kl = config.objective.kl
    if kl.coefficient > 0 and kl.place == "reward":
        raise UsageError(
            f"objective.kl.place=reward: not under {WITH}: the reference's passes have no time; "
            "take objective.kl.place=loss"
        )
    config.workload.check()
    if config.replay is not None and config.workload.name != "none":
        raise UsageError(
            f"workload={config.workload.name}: not under replay={config.replay}: tool calls and "
            "verifications take what was recorded; leave it none"
        )
    if config.replay is None and config.workload.name == "none":
        raise UsageError(
            f"workload=none: {WITH} needs one for what turns, starts and verifications take, such "
            "as workload=swebench_verified"
        )
    settle_split(config)
