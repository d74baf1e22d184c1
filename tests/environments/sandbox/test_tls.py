"""Engines on TCP, with and without TLS: a real one that wants certificates, and what is said of
certificates that are no use."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from environments.protocols import InfrastructureError, UsageError
from environments.sandbox import tls
from environments.sandbox.docker import DockerProvider
from environments.sandbox.images import MINI_IMAGE, engine
from environments.sandbox.options import ProviderOptions
from environments.sandbox.select import open_provider
from environments.swebench.environment import SweBench
from harness.agents import scripted
from harness.clock import WallClock
from harness.config import RolloutConfig
from harness.rollout import Rollouts

_BODY = b'{"ApiVersion": "1.41"}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(_BODY) + _BODY
_LIVES = str(Path(__file__).with_name("lives_program.py"))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)


def use(monkeypatch, folder):
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(folder))


@pytest.fixture(scope="module")
def authority(make_authority):
    return make_authority()


@contextmanager
def serving(handle, context=None):
    """The tcp:// address of `handle` (reader, writer), in an event loop of its own."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), []

    async def listen():
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        address.append(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()
        async with server:
            await server.serve_forever()

    def run():
        asyncio.set_event_loop(loop)
        listening.append(loop.create_task(listen()))
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(listening[0])
        loop.close()

    listening = []
    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(listening[0].cancel)
        thread.join(10)


def server_context(folder, *, wants_certificate=True):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if wants_certificate:
        context.load_verify_locations(folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def pinging(context):
    """The tcp:// address of a server that answers every request alike. It blocks in a thread: so
    OpenSSL says why it refuses a client, as an engine does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        with suppress(OSError):  # closed: the end
            while True:
                plain, _ = listener.accept()
                with suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
                    if secured.recv(4096):
                        secured.sendall(_ANSWER)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


async def refuse_plain(reader, writer):
    await reader.read(4096)
    writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.")
    await writer.drain()
    writer.close()


# --- what is said -------------------------------------------------------------------------------


def test_certificates_that_are_right_leave_nothing_to_say(authority, monkeypatch):
    use(monkeypatch, authority.issue("good"))
    with pinging(server_context(authority.issue("good-server"))) as address:
        assert tls.trouble(address) == ""
        client, said = engine(address)
        assert client is not None, said
        client.close()


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_a_missing_file_is_named(authority, monkeypatch, name):
    folder = authority.issue(f"without-{name}")
    (folder / name).unlink()
    use(monkeypatch, folder)
    client, said = engine("tcp://127.0.0.1:9")
    assert client is None and "\n" not in said
    assert said.startswith(f"DOCKER_CERT_PATH={folder}: has no {name}, which TLS to tcp://127")


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_a_file_that_is_no_certificate_is_named(authority, monkeypatch, name):
    folder = authority.issue(f"broken-{name}")
    (folder / name).write_text("no certificate\n")
    use(monkeypatch, folder)
    with pytest.raises(UsageError, match=rf"^DOCKER_CERT_PATH: .*{name}.* cannot be used: .+"):
        tls.context_for("tcp://127.0.0.1:9")


def test_another_certificates_key_and_a_locked_one_are_refused(authority, monkeypatch):
    folder, other = authority.issue("mixed"), authority.issue("other")
    shutil.copy(other / "key.pem", folder)
    use(monkeypatch, folder)
    with pytest.raises(UsageError, match=r"cert\.pem with key\.pem cannot be used: .*MISMATCH"):
        tls.context_for("tcp://127.0.0.1:9")
    lock = "openssl ec -aes256 -passout pass:x -in key.pem -out key.pem"
    subprocess.run(lock.split(), cwd=other, check=True, capture_output=True)
    use(monkeypatch, other)
    with pytest.raises(UsageError, match=r"cert\.pem with key\.pem cannot be used"):
        tls.context_for("tcp://127.0.0.1:9")


def test_an_engine_is_never_left_unverified(authority, monkeypatch):
    monkeypatch.setenv("DOCKER_CERT_PATH", str(authority.issue("unverified")))
    client, said = engine("tcp://127.0.0.1:9")
    assert client is None
    assert "would not verify tcp://127.0.0.1:9; set DOCKER_TLS_VERIFY=1, or unset" in said
    assert tls.folder_for("unix:///var/run/docker.sock") is None


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ({"days": -1}, {}, "the engine's certificate has expired"),
        ({"address": "10.0.0.1"}, {}, "the engine's certificate does not name this host"),
        ({"foreign": True}, {}, "the engine's certificate was not signed by {folder}/ca.pem"),
        ({}, {"days": -1}, "the engine says that {folder}/cert.pem has expired"),
        ({}, {"foreign": True}, "the engine does not know who signed {folder}/cert.pem"),
    ],
)
def test_a_refused_certificate_is_one_line(
    authority, make_authority, monkeypatch, tmp_path, server, client, reason
):
    def issue(name, *, foreign=False, **settings):
        by = make_authority() if foreign else authority
        return by.issue(f"{name}-{tmp_path.name}", **settings)

    theirs, ours = issue("server", **server), issue("client", **client)
    if client.get("foreign"):
        shutil.copy(theirs / "ca.pem", ours)  # the engine is known, the client is not
    use(monkeypatch, ours)
    with pinging(server_context(theirs)) as address:
        found, said = engine(address)
    assert found is None
    assert said == f"{address}: {reason.format(folder=ours)}"


def test_speaking_tls_to_who_does_not_and_the_other_way_round(authority, monkeypatch):
    with serving(refuse_plain) as address:
        assert engine(address)[1] == (
            f"{address}: speaks TLS alone; set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH"
        )
    use(monkeypatch, authority.issue("eager"))
    with serving(refuse_plain) as address:
        said = engine(address)[1]
    assert said == f"{address}: no TLS is spoken there; unset DOCKER_TLS_VERIFY"


def test_a_run_is_refused_with_that_line(authority, monkeypatch):
    use(monkeypatch, authority.issue("refused", days=-1))
    with pinging(server_context(authority.issue("refusing"))) as address:
        options = ProviderOptions(hosts=(address,))
        opening = open_provider(
            "docker", image=MINI_IMAGE, run_id="x", max_parallel=1, options=options
        )
        with pytest.raises(UsageError, match=r"^sandbox=docker: tcp://.*cert\.pem has expired$"):
            asyncio.run(opening)


# --- real engines -------------------------------------------------------------------------------


async def relay(reader, writer):
    """To the machine's engine, byte by byte, until either side ends."""
    below, above = await asyncio.open_unix_connection("/var/run/docker.sock")

    async def copy(source, target):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()

    copies = [asyncio.create_task(copy(reader, above)), asyncio.create_task(copy(below, writer))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        above.close()
        writer.close()


def open_at(address, **options):
    return open_provider(
        "docker",
        image=MINI_IMAGE,
        run_id="tcp",
        max_parallel=4,
        options=ProviderOptions(hosts=(address,), **options),
    )


async def whole_life(sandbox):
    """Everything that goes over the attached stream."""
    assert (await sandbox.exec("echo on; cat", timeout_s=20)).output == "on\n"
    bulk = os.urandom(3 << 20)
    await sandbox.put({"bulk": bulk})
    assert await sandbox.get("bulk") == bulk
    long = await sandbox.exec(
        "head -c 5000000 /dev/zero | tr '\\0' x", timeout_s=20, max_output_bytes=4 << 20
    )
    assert long.omitted_bytes == 5_000_000 - (4 << 20)
    slow = await sandbox.exec("sleep 100 & sleep 100", timeout_s=0.3)
    assert slow.timed_out and slow.duration_s < 10
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sandbox.exec("sleep 0.5; echo first", timeout_s=20)
    assert (await sandbox.exec("echo second", timeout_s=20)).output == "second\n"
    await sandbox.stop()


@pytest.mark.docker
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_a_whole_life_over_tcp(authority, monkeypatch, spec, secured):
    context = None
    if secured:
        use(monkeypatch, authority.issue("life"))
        context = server_context(authority.issue("life-server"))

    async def scenario(address):
        pool = await open_at(address, warm=2)
        try:
            await asyncio.gather(*[whole_life(await pool.start(spec)) for _ in range(3)])
        finally:
            await pool.close()
        return pool.counters

    with serving(relay, context) as address:
        counters = asyncio.run(scenario(address))
    assert counters.created == counters.removed >= 3
    assert counters.leaked == counters.engine_losses == 0


@pytest.mark.docker
@pytest.mark.slow
def test_an_engine_that_wants_certificates(own_engine, monkeypatch, spec, make_authority):
    address = own_engine.tcp_address
    assert "speaks TLS alone" in engine(address)[1]
    use(monkeypatch, make_authority().issue("stranger"))
    shutil.copy(own_engine.client_certificates / "ca.pem", os.environ["DOCKER_CERT_PATH"])
    assert "does not know who signed" in engine(address)[1] or "not accept" in engine(address)[1]
    use(monkeypatch, own_engine.client_certificates)

    environment = SweBench()
    environment.warm_up()
    tasks = environment.tasks("train")

    async def scenario():
        pool = await open_at(address, warm=2)
        clock = WallClock()
        rollouts = Rollouts(
            environment,
            lambda task: scripted("oracle", environment, task),
            pool,
            clock,
            RolloutConfig(),
            clock.origin_s,
        )
        lives = (rollouts.run(tasks[n], n, 0, n, lambda event: None) for n in range(4))
        trajectories = await asyncio.gather(*lives)
        assert [t and t.reward for t in trajectories] == [1.0] * 4
        await whole_life(await pool.start(spec))

        sandbox = await pool.start(spec)
        command = asyncio.create_task(sandbox.exec("sleep 100", timeout_s=200))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(own_engine.end, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="exec_transport"):
            await command
        assert pool.counters.engine_losses == 1
        await asyncio.to_thread(own_engine.start)
        await whole_life(await pool.start(spec))
        await pool.close()
        assert pool.counters.created == pool.counters.removed
        assert pool.counters.leaked == 0

    asyncio.run(scenario())
    counts = own_engine.counts_after_kill()
    assert counts == dict.fromkeys(counts, 0)


@pytest.mark.docker
@pytest.mark.slow
def test_a_killed_harness_leaves_nothing_behind_tls(own_engine, monkeypatch):
    use(monkeypatch, own_engine.client_certificates)
    numbers = ("0", "64", "8")
    command = [sys.executable, _LIVES, own_engine.tcp_address, own_engine.volume_image, *numbers]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "end" not in process.stdout.readline():
        pass
    process.kill()
    process.stdout.close()
    assert process.wait() == -9

    async def next_start():
        provider = await open_at(own_engine.tcp_address)
        await provider.close()
        assert isinstance(provider, DockerProvider)
        return provider.reaped

    assert asyncio.run(next_start())["containers"] > 0
    counts = own_engine.counts()
    assert counts == dict.fromkeys(counts, 0)
