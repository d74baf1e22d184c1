"""What runs inside a Ray actor, without Ray: calls have their turns, whatever becomes of one."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from harness.cluster.ray_actor import Actor


class Echo:
    def say(self, what: Any) -> Any:
        return what


def test_a_file_that_cannot_be_written_holds_nobody_up(monkeypatch, tmp_path: Path) -> None:
    """A full disk while new weights arrive: the call says so, and those after it are answered."""

    async def scenario() -> None:
        actor = Actor()
        actor._service = Echo()
        third = asyncio.create_task(actor.call(2, "say", ("third",), {}))
        second = asyncio.create_task(actor.call_with_file(1, "say", b"", "no/such/folder", ()))
        await asyncio.sleep(0)
        first = await actor.call(0, "say", ("first",), {})
        kind, (name, _, _) = await second
        assert (kind, name) == ("error", "FileNotFoundError")
        assert (first, await third) == (("ok", "first"), ("ok", "third"))
        assert not list(tmp_path.glob("thundersync*"))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asyncio.run(asyncio.wait_for(scenario(), 10))
