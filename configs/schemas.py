"""Registers the config dataclasses with Hydra; loaded by dotted path from harness.entry."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from environments.simulated.config import SimulatedConfig
from environments.swebench.config import SweBenchConfig
from environments.terminal_bench.config import TerminalBenchConfig
from harness.config import Config


def register() -> None:
    """Idempotent. `schema/...` nodes are what the YAML files of a group are checked against."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    store.store(group="schema/env", name="simulated", node=SimulatedConfig)
    store.store(group="schema/env", name="swebench", node=SweBenchConfig)
    store.store(group="schema/env", name="terminal_bench", node=TerminalBenchConfig)
