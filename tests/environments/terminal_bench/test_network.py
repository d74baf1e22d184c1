"""Agent and verifier reach what their own phase of task.toml allows, in one sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from environments.protocols import Verdict
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider

pytestmark = pytest.mark.docker

TOML = """\
schema_version = "1.4"

[environment]
memory_mb = 256
storage_mb = 32
network_mode = "no-network"
"""
# Which hosts are reached, one letter each, as the agent leaves it in a file and the tests find it.
_LOOK = """\
for host in site.test later.test; do
  python3 -c "import urllib.request as u; u.urlopen('http://$host/', timeout=9)" 2>/dev/null \\
    && echo -n y || echo -n n
done
"""
TEST_SH = f"""\
#!/bin/bash
found=$({_LOOK})
echo "agent $(cat /app/found) verifier $found"
[ "$(cat /app/found) $found" = "$EXPECTED" ] && echo 1 >/logs/verifier/reward.txt \\
  || echo 0 >/logs/verifier/reward.txt
"""


def judge(bench: Any, site: Any, path: Any) -> Verdict:
    environment, task = bench.environment_of(path)

    async def scenario() -> Verdict:
        provider = await open_provider(
            "docker",
            image=MINI_IMAGE,
            run_id="tests-terminal-network",
            max_parallel=2,
            options=ProviderOptions(mirrors=site.mirrors),
        )
        try:
            sandbox = await provider.start(environment.sandbox_spec(task))
            await environment.prepare(task, sandbox)
            look = await sandbox.exec(f"({_LOOK}) >/app/found", timeout_s=60)
            assert look.exit_code == 0
            submission = await environment.collect(task, sandbox)
            return await environment.verify(task, submission, provider)
        finally:
            await provider.close()
            assert provider.counters.leaked == 0

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("agent", "verifier", "expected"),
    [
        ('allowed_hosts = ["site.test"]', 'allowed_hosts = ["later.test"]', "yn ny"),
        ('network_mode = "no-network"', 'allowed_hosts = ["site.test"]', "nn yn"),
        ('allowed_hosts = ["site.test", "later.test"]', 'network_mode = "no-network"', "yy nn"),
        ('allowed_hosts = ["later.test"]', 'allowed_hosts = ["later.test"]', "ny ny"),
    ],
)
def test_each_phase_reaches_its_own_hosts(
    docker_bench, make_task, site, agent: str, verifier: str, expected: str
) -> None:
    toml = f"{TOML}\n[agent]\n{agent}\n\n[verifier]\n{verifier}\n"
    toml += f'env = {{ EXPECTED = "{expected}" }}\n'
    path = make_task("phases", toml=toml, test=TEST_SH)
    verdict = judge(docker_bench, site, path)
    assert verdict.report["output"].strip() == "agent {} verifier {}".format(*expected.split())
    assert verdict.reward == 1.0
