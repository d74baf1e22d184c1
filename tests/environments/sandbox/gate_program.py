"""A harness to be killed: two sandboxes with gates, kept until then.

python gate_program.py RUN_ID MIRROR,...
"""

from __future__ import annotations

import asyncio
import sys

from environments.protocols import SandboxSpec
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider


async def main(run_id: str, mirrors: list[str]) -> None:
    provider = await open_provider(
        "docker",
        image=MINI_IMAGE,
        run_id=run_id,
        max_parallel=2,
        options=ProviderOptions(mirrors=mirrors),
    )
    print("starting", flush=True)
    spec = SandboxSpec(image=MINI_IMAGE, allowed_hosts=("site.test",))
    await asyncio.gather(*(provider.start(spec) for _ in range(2)))
    print("started", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2].split(",")))
