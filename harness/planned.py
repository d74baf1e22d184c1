"""The agent of a simulated task: it takes the turns that its life has planned.

The lives come from an environment that the harness names by dotted path, so this is what it needs
of one (environments.simulated.life).
"""

from __future__ import annotations

from typing import Any, Protocol

from harness import lengths
from harness.protocols import EndReason, Engine, Generation, Trajectory, VersionSpan


class Life(Protocol):
    """Planned turns, one after the other."""

    turn: Any
    plan: Any

    def advance(self) -> int | None: ...

    @property
    def last(self) -> bool: ...


class PlannedAgent:
    """Reads and generates so many tokens as its life says, which are counted and not made."""

    def __init__(self, engine: Engine, life: Life) -> None:
        self._engine = engine
        self._life = life

    async def act(self, trajectory: Trajectory, message: str) -> str | None:
        life = self._life
        read = life.advance()
        end: EndReason = life.plan.end
        if read is None:  # a limit ended it before another turn
            trajectory.end = end
            return None
        lengths.extend(trajectory, read, generated=False)
        start = len(trajectory.tokens_T)
        completion = await self._engine.generate(
            Generation(
                session=trajectory.trajectory_id,
                prompt_T=trajectory.tokens_T,
                max_new_tokens=life.turn.action_tokens,
                temperature=1.0,
                seed=trajectory.seed,
                stop_tokens=(),
            )
        )
        lengths.extend(trajectory, len(completion.tokens_T), generated=True)
        trajectory.version_spans += [
            VersionSpan(s.version, start + s.start, start + s.end) for s in completion.version_spans
        ]
        if life.last and end == "token_limit":
            trajectory.end = end
            return None
        return "submit" if life.last and end == "submit" else "command"

    async def close(self, trajectory: Trajectory) -> None:
        await self._engine.release(trajectory.trajectory_id)
