"""A container whose task allows hosts reaches these and nothing else, on a real engine.

The hosts are another container on the engine's default bridge, which `mirrors` name: nothing here
has the internet.
"""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from environments.protocols import InfrastructureError, Sandbox, SandboxSpec
from environments.sandbox import gate_server
from environments.sandbox.backoff import TemporaryError
from environments.sandbox.channel import encode_frame
from environments.sandbox.gate import make_network
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.leftovers import remove_container, remove_network
from environments.sandbox.options import ProviderOptions
from environments.sandbox.ownership import LABEL, owner_labels
from environments.sandbox.select import open_provider

pytestmark = pytest.mark.docker

SPEC = SandboxSpec(image=MINI_IMAGE, memory_mb=256, pids=64, scratch_mb=64)
ALLOWED = ("site.test", "tls.test", "*.wild.test")
_PROGRAM = Path(__file__).with_name("gate_program.py")
# What an agent can try: each prints what came of it on one line.
_TOOLS = r"""
import http.client, socket, ssl, sys, urllib.request, urllib.error
from concurrent.futures import ThreadPoolExecutor
proxy = urllib.request.getproxies()["http"].removeprefix("http://").rsplit(":", 1)
gate = proxy[0]
blind = ssl._create_unverified_context()
def said(get):
    try:
        return get()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
def direct(url, host=None):
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=blind))
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    return said(lambda: opener.open(request, timeout=10).read().decode())
def proxied(url):
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=blind))
    return said(lambda: opener.open(url, timeout=10).read().decode())
def tunnel(host, port):
    def ask():
        connection = http.client.HTTPConnection(*proxy, timeout=10)
        connection.set_tunnel(host, port)
        connection.request("GET", "/tunnel")
        return connection.getresponse().read().decode()
    return said(ask)
def tls(server_name):
    def ask():
        with socket.create_connection((gate, 443), timeout=10) as plain:
            with blind.wrap_socket(plain, server_hostname=server_name) as secure:
                return secure.version()
    return said(ask)
def tcp(host, port):
    return said(lambda: socket.create_connection((host, port), timeout=10) and "connected")
def tcp_all(*targets):
    with ThreadPoolExecutor(len(targets)) as threads:
        return list(threads.map(lambda target: tcp(*target), targets))
def lookup(name):
    return said(lambda: socket.getaddrinfo(name, 80)[0][4][0])
"""


async def opened(site: Any, *, max_parallel: int = 20, warm: int = 0) -> Any:
    return await open_provider(
        "docker",
        image=MINI_IMAGE,
        run_id="tests-gate",
        max_parallel=max_parallel,
        options=ProviderOptions(mirrors=site.mirrors, warm=warm),
    )


def run(site: Any, body: Any, **spec: Any) -> Any:
    """`body` with one sandbox that is allowed ALLOWED; nothing may be left of it."""

    async def scenario() -> Any:
        provider = await opened(site)
        try:
            spec_ = replace(SPEC, **{"allowed_hosts": ALLOWED, **spec})
            return await body(await provider.start(spec_))
        finally:
            await provider.close()
            assert provider.counters.leaked == 0
            assert provider.counters.created == provider.counters.removed

    return asyncio.run(scenario())


async def tried(sandbox: Sandbox, *attempts: str) -> list[str]:
    """What came of each attempt, an expression of _TOOLS."""
    lines = "\n".join(f"print(repr({attempt}))" for attempt in attempts)
    command = f"python3 - <<'EOF_TOOLS'\n{_TOOLS}\n{lines}\nEOF_TOOLS"
    result = await sandbox.exec(command, timeout_s=120)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def ours(api: Any, run_id: str = "tests-gate") -> dict[str, int]:
    """What a run has in the engine."""
    filters = {"label": f"{LABEL}run={run_id}"}
    containers = api.containers(all=True, filters=filters)
    return {"containers": len(containers), "networks": len(api.networks(filters=filters))}


def router(api: Any, container: str) -> str:
    """Whether it forwards packets."""
    run_ = api.exec_create(container, ["cat", "/proc/sys/net/ipv4/ip_forward"])
    return api.exec_start(run_["Id"]).decode()


def test_allowed_hosts_are_reached_by_http_tls_and_connect(site: Any) -> None:
    found = run(
        site,
        lambda sandbox: tried(
            sandbox,
            'direct("http://site.test/a")',
            'proxied("http://site.test/b")',
            'proxied("http://site.test:8080/c")',
            'direct("https://tls.test/d")',
            'proxied("https://tls.test/e")',
            'tunnel("site.test", 8080)',
            'proxied("http://a.wild.test/f")',
        ),
    )
    assert found == [
        "'site saw site.test /a'",
        "'site saw site.test /b'",
        "'site saw site.test:8080 /c'",
        "'site saw tls.test /d'",
        "'site saw tls.test /e'",
        "'site saw site.test:8080 /tunnel'",
        "'site saw a.wild.test /f'",
    ]


def test_no_other_name_and_no_address_goes_through_the_gate(site: Any) -> None:
    """The mirrors would lead to other.test: what stops it is that it was not allowed."""
    address = site.address

    async def body(sandbox: Sandbox) -> None:
        refused = await tried(
            sandbox,
            'direct(f"http://{gate}/", "other.test")',
            f'direct(f"http://{{gate}}/", "{address}")',
            'proxied("http://other.test/")',
            f'proxied("http://{address}/")',
            'proxied("http://wild.test/")',
            'proxied("http://x.site.test/")',
        )
        for line in refused:
            assert "403 refused by the sandbox's gate" in line
        for line in await tried(
            sandbox,
            'tunnel("other.test", 443)',
            f'tunnel("{address}", 80)',
            f'tunnel("::ffff:{address}", 80)',
            'tunnel("127.0.0.1", 80)',
        ):
            assert "403 Forbidden" in line
        for line in await tried(sandbox, 'tls("other.test")', f'tls("{address}")', "tls(None)"):
            assert "SSL" in line and "TLSv1" not in line
        for line in await tried(
            sandbox, 'lookup("other.test")', 'lookup("example.com")', 'lookup("secret.evil.org")'
        ):
            assert "gaierror" in line

    run(site, body)


def test_a_name_that_resolves_to_a_private_address_is_refused(site: Any) -> None:
    """`gate` is the gate's own name, which it resolves to its address on the engine's bridge."""
    (line,) = run(site, lambda s: tried(s, 'direct("http://gate/")'), allowed_hosts=("gate",))
    assert "403" in line and "gate has no public address" in line


def test_nothing_but_the_gate_is_in_reach(site: Any, api: Any) -> None:
    """Everything tried does answer, as the first look from outside shows, and answers nobody in
    there: the site itself, the host on every address, the gate on its other ports and address."""
    with socket.create_server(("0.0.0.0", 0)) as host:
        port = host.getsockname()[1]
        config = api.inspect_network("bridge")["IPAM"]["Config"][0]
        # An engine that was never started before does not name it.
        bridge = config.get("Gateway") or str(next(IPv4Network(config["Subnet"]).hosts()))
        route = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True)
        own = [word for word in route.stdout.split() if ":" not in word]
        there = [(site.address, 80), *((address, port) for address in {bridge, *own})]
        for target in there:
            socket.create_connection(target, timeout=5).close()

        async def body(sandbox: Any) -> None:
            gate = api.inspect_container(sandbox.gate.sandbox_id)["NetworkSettings"]["Networks"]
            targets = [*there, ("8.8.8.8", 53), (sandbox.gate.gateway, port)]
            targets += [(gate["bridge"]["IPAddress"], 80), (sandbox.gate.address, port)]
            targets += [(sandbox.gate.address, 22), (sandbox.gate.address, 8080)]
            (found,) = await tried(sandbox, f"tcp_all(*{targets!r})")
            outcomes = ast.literal_eval(found)
            assert len(outcomes) == len(targets)
            for outcome in outcomes:
                assert any(word in outcome for word in ("No route", "refused", "unreachable"))
            for port_ in gate_server.PORTS:  # nor does the gate serve anybody else
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((gate["bridge"]["IPAddress"], port_), timeout=5)
            assert router(api, sandbox.gate.sandbox_id) == "0\n"
            look = await sandbox.exec("cat /proc/net/if_inet6 /proc/net/arp", timeout_s=20)
            neighbours = [line for line in look.output.splitlines() if " 0x2 " in line]
            assert [line.split()[0] for line in neighbours] == [sandbox.gate.address]
            assert "eth0" not in look.output.partition("IP address")[0]  # no IPv6 at all

        run(site, body)


def test_sandboxes_do_not_reach_each_other(site: Any, api: Any) -> None:
    async def scenario() -> None:
        provider = await opened(site)
        try:
            one, two = await asyncio.gather(
                *(provider.start(replace(SPEC, allowed_hosts=ALLOWED)) for _ in range(2))
            )
            serve = "python3 -m http.server 80 >/dev/null 2>&1 & sleep 1; hostname -I"
            own = (await two.exec(serve, timeout_s=20)).output.split()[0]
            (from_inside,) = await tried(two, f'tcp("{own}", 80)')
            assert from_inside == "'connected'"  # and the gate is not in the way of port 80
            networks = api.inspect_container(two.sandbox_id)["NetworkSettings"]["Networks"]
            assert [entry["IPAddress"] for entry in networks.values()] == [own]
            gate = two.gate.address
            (found,) = await tried(one, f'tcp_all(("{own}", 80), ("{gate}", 80))')
            assert len(ast.literal_eval(found)) == 2 and "connected" not in found
        finally:
            await provider.close()

    asyncio.run(scenario())


def test_the_list_can_change_in_mid_life(site: Any) -> None:
    async def body(sandbox: Any) -> None:
        both = ('direct("http://site.test/")', 'direct("http://later.test/")')
        first, later = await tried(sandbox, *both)
        assert "site saw" in first and "403" in later
        keep = """\
exec 3<>/dev/tcp/site.test/80
printf 'GET / HTTP/1.1\\r\\nHost: site.test\\r\\n\\r\\n' >&3
head -c 12 <&3
(timeout 60 cat <&3 >/dev/null; echo ended >/tmp/ended) >/dev/null 2>&1 &"""
        assert (await sandbox.exec(keep, timeout_s=20)).output.startswith("HTTP/1")
        await sandbox.allow_hosts(["later.test"])
        first, later = await tried(sandbox, *both)
        assert "403" in first and "site saw" in later
        look = "for _ in {1..100}; do [ -e /tmp/ended ] && break; sleep 0.1; done; cat /tmp/ended"
        assert (await sandbox.exec(look, timeout_s=20)).output == "ended\n"
        await sandbox.allow_hosts([])
        for line in await tried(sandbox, *both):
            assert "403" in line

    run(site, body, later_hosts=("later.test",))


def test_without_allowed_hosts_there_is_no_network_at_all(site: Any, api: Any) -> None:
    async def body(sandbox: Any) -> None:
        assert sandbox.gate is None
        look = await sandbox.exec("ls /sys/class/net; env | grep -ci proxy", timeout_s=20)
        assert look.output.split() == ["lo", "0"]
        assert ours(api) == {"containers": 1, "networks": 0}
        await sandbox.allow_hosts([])
        with pytest.raises(InfrastructureError, match="nothing leads out of it"):
            await sandbox.allow_hosts(["site.test"])

    run(site, body, allowed_hosts=())


def test_a_lost_gate_is_an_infrastructure_failure(site: Any, api: Any) -> None:
    async def body(sandbox: Any) -> None:
        running = asyncio.create_task(sandbox.exec("sleep 2; false", timeout_s=20))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(api.kill, sandbox.gate.sandbox_id)
        for command in (running, sandbox.exec("true", timeout_s=20)):
            with pytest.raises(InfrastructureError, match=r"-gate, which leads .* is gone") as lost:
                await command
            assert lost.value.kind == "exec_transport"
        assert not await sandbox.answers()  # a warm one would not be handed out
        with pytest.raises(InfrastructureError):
            await sandbox.allow_hosts(["site.test"])

    run(site, body)


def test_an_agent_cannot_use_its_gate_up(site: Any) -> None:
    flood = r"""
import random, socket, sys, time
kept = []
gate = socket.gethostbyname("site.test")
for number in range(600):
    s = socket.socket()
    s.settimeout(5)
    try:
        s.connect((gate, (80, 443, 3128)[number % 3]))
        s.send((b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x40\x00", b"\xff" * 9000)[number % 3])
    except OSError:
        pass
    kept.append(s)
udp = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(5000):
    udp.sendto(random.randbytes(random.randrange(600)), (gate, 53))
"""
    upload = r"""
python3 - <<'EOF'
import urllib.request
for _ in range(3):
    request = urllib.request.Request("http://site.test/up", data=b"x" * 20_000_000)
    print(urllib.request.urlopen(request, timeout=60).read().decode())
EOF"""

    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(f"python3 - <<'EOF'\n{flood}\nEOF", timeout_s=100)
        assert result.exit_code == 0, result.output
        (line,) = await tried(sandbox, 'direct("http://site.test/after")')
        assert line == "'site saw site.test /after'"
        assert (await sandbox.exec(upload, timeout_s=100)).output.count("site saw") == 3

    run(site, body)


def test_warm_sandboxes_of_each_list_of_hosts(site: Any) -> None:
    async def scenario() -> None:
        pool = await opened(site, warm=1)
        try:
            pool.expect(replace(SPEC, allowed_hosts=ALLOWED))
            while not pool.idle:
                await asyncio.sleep(0.05)
            sandbox = await pool.start(replace(SPEC, allowed_hosts=ALLOWED))
            assert pool.counters.warm == 1
            other = await pool.start(replace(SPEC, allowed_hosts=("other.test",)))
            assert pool.misses == 1
            for one, word in ((sandbox, "403"), (other, "site saw")):
                (line,) = await tried(one, 'direct(f"http://{gate}/", "other.test")')
                assert word in line
        finally:
            await pool.close()
        assert pool.counters.leaked == 0

    asyncio.run(scenario())


@pytest.mark.slow
def test_sixteen_at_once(site: Any, api: Any) -> None:
    async def scenario() -> None:
        provider = await opened(site)
        try:
            begun_s = time.monotonic()
            sandboxes = await asyncio.gather(
                *(provider.start(replace(SPEC, allowed_hosts=ALLOWED)) for _ in range(16))
            )
            print(f"16 sandboxes with gates in {time.monotonic() - begun_s:.1f} s")
            found = await asyncio.gather(
                *(tried(sandbox, f'direct("http://site.test/{number}")')
                  for number, sandbox in enumerate(sandboxes))
            )  # fmt: skip
            assert found == [[f"'site saw site.test /{number}'"] for number in range(16)]
            assert ours(api) == {"containers": 32, "networks": 16}
        finally:
            await provider.close()
        assert provider.counters.created == provider.counters.removed == 16
        assert provider.counters.leaked == 0
        assert ours(api) == {"containers": 0, "networks": 0}

    asyncio.run(scenario())


def test_starts_that_are_given_up_leave_nothing(site: Any, api: Any) -> None:
    async def scenario() -> None:
        provider = await opened(site)
        for wait_s in (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
            start = asyncio.create_task(provider.start(replace(SPEC, allowed_hosts=ALLOWED)))
            await asyncio.sleep(wait_s)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
        await provider.close()
        assert provider.counters.leaked == 0
        assert ours(api) == {"containers": 0, "networks": 0}

    asyncio.run(scenario())


def test_a_killed_harness_leaves_nothing_after_the_next_start(site: Any, api: Any) -> None:
    for wait_s in (0.0, 0.3, 3.0):
        run_id = f"killed-gates-{os.getpid()}"
        command = [sys.executable, str(_PROGRAM), run_id, ",".join(site.mirrors)]
        harness = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert harness.stdout is not None and harness.stdout.readline() == "starting\n"
        if wait_s == 3.0:
            assert harness.stdout.readline() == "started\n"
            assert ours(api, run_id) == {"containers": 4, "networks": 2}
        else:
            time.sleep(wait_s)
        harness.send_signal(signal.SIGKILL)
        harness.wait()
        harness.stdout.close()

        async def next_start() -> Any:
            provider = await opened(site)
            await provider.close()
            return provider.reaped

        reaped = asyncio.run(next_start())
        print(f"killed after {wait_s} s: the next start removed {reaped}")
        if wait_s == 3.0:
            assert reaped["containers"] >= 4 and reaped["networks"] >= 2
        assert ours(api, run_id) == {"containers": 0, "networks": 0}


def test_networks_that_have_run_out_are_tried_again_and_never_a_reward(api: Any) -> None:
    """TemporaryError is what the back-off takes up, and at last an InfrastructureError."""
    pool = IPv4Network("198.18.255.240/28")
    names = [f"test-pool-{os.getpid()}-{number}" for number in range(3)]
    try:
        subnets = {make_network(api, name, owner_labels(), pool) for name in names[:2]}
        assert subnets == set(pool.subnets(new_prefix=29))
        with pytest.raises(TemporaryError, match="no network is free") as caught:
            make_network(api, names[2], owner_labels(), pool)
        assert caught.value.kind == "start"
    finally:
        for name in names:
            remove_network(api, name)


def test_an_engine_that_puts_its_host_into_the_network_is_found_out(api: Any) -> None:
    """As one would that does not know the option which keeps its host out: nothing is served."""
    from docker.types import IPAMConfig, IPAMPool

    name = f"test-open-{os.getpid()}"
    subnet, gateway, own = "198.18.255.232/29", "198.18.255.233", "198.18.255.234"
    pools = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet, gateway=gateway)])
    source = Path(gate_server.__file__).read_text()
    allow = encode_frame([b"allow", b"site.test"])
    run_gate = f"""
import subprocess, sys
for gateway in ("{gateway}", "198.18.255.238"):
    command = [sys.executable, "-c", {source!r}, "address={own}", "gateway=" + gateway]
    print(subprocess.run(command, input={allow!r}, stdout=subprocess.PIPE).stdout[8:])
"""
    try:
        api.create_network(name, internal=True, ipam=pools, labels=owner_labels())
        host = api.create_host_config(network_mode=name)
        endpoint = api.create_endpoint_config(ipv4_address=own)
        api.create_container(
            MINI_IMAGE,
            ["python3", "-c", run_gate],
            name=name,
            host_config=host,
            networking_config=api.create_networking_config({name: endpoint}),
            labels=owner_labels(),
        )
        api.start(name)
        assert api.wait(name)["StatusCode"] == 0
        with_host, without = map(ast.literal_eval, api.logs(name).decode().splitlines())
        assert with_host.startswith(b"ok") and b"has put its host into this network" in with_host
        assert without == b"ok" + encode_frame([b"ok"])
    finally:
        remove_container(api, name)
        remove_network(api, name)
