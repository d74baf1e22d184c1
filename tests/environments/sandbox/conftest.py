"""Both kinds of sandbox behind one fixture, and a third: bubblewrap without control groups."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from environments.protocols import Sandbox, SandboxSpec
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.images import MINI_IMAGE, connect, engine
from environments.sandbox.options import DEFAULT_OPTIONS, ProviderOptions
from environments.sandbox.select import open_provider

SPEC = SandboxSpec(image=MINI_IMAGE, memory_mb=256, pids=64, scratch_mb=64)


class Backend:
    """Opens providers and sandboxes of one kind and checks that each leaves nothing behind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = name.partition("-")[0]

    async def open(
        self,
        max_parallel: int = 16,
        run_id: str = "tests",
        options: ProviderOptions = DEFAULT_OPTIONS,
    ) -> Any:
        provider = await open_provider(
            self.kind,  # type: ignore[arg-type]
            image=MINI_IMAGE,
            run_id=run_id,
            max_parallel=max_parallel,
            options=options,
        )
        if self.name.endswith("-watched"):
            assert isinstance(provider, BubblewrapProvider)
            provider.groups = None
        return provider

    @asynccontextmanager
    async def provider(
        self, max_parallel: int = 16, options: ProviderOptions = DEFAULT_OPTIONS
    ) -> AsyncIterator[Any]:
        provider = await self.open(max_parallel, options=options)
        try:
            yield provider
        finally:
            await provider.close()
        assert provider.counters.leaked == 0
        assert provider.counters.created == provider.counters.removed

    def run(self, body: Callable[[Sandbox], Awaitable[Any]], **spec: Any) -> Any:
        """Run `body` with one fresh sandbox."""

        async def scenario() -> Any:
            async with self.provider() as provider:
                sandbox = await provider.start(replace(SPEC, **spec))
                return await body(sandbox)

        return asyncio.run(scenario())


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param)


@pytest.fixture(
    params=[
        "bubblewrap",
        "bubblewrap-watched",
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
def limited_backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param)


@pytest.fixture
def spec() -> SandboxSpec:
    return SPEC


def running_in(group: Path) -> int:
    try:
        return len((group / "cgroup.procs").read_text().split())
    except OSError:  # the group has just been removed
        return 0


class Authority:
    """Issues certificates as docker's own client wants them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req -x509 -nodes -keyout ca-key.pem -out ca.pem -subj /CN=tests -days 2")

    def _openssl(self, command: str) -> None:
        words = ["openssl", *command.split()]
        if words[1] == "req":
            words += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)

    def issue(self, name: str, *, days: int = 2, address: str = "127.0.0.1") -> Path:
        """A folder with ca.pem, cert.pem, key.pem, of a server or a client; days=-1: expired."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "extensions").write_text(
            f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        self._openssl(f"req -nodes -keyout {name}/key.pem -out {name}/request -subj /CN={name}")
        self._openssl(
            f"x509 -req -in {name}/request -CA ca.pem -CAkey ca-key.pem -CAcreateserial"
            f" -days {days} -out {name}/cert.pem -extfile {name}/extensions"
        )
        shutil.copy(self.folder / "ca.pem", folder)
        return folder


@pytest.fixture(scope="session")
def make_authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Authority]:
    return lambda: Authority(tmp_path_factory.mktemp("authority"))


class OwnEngine:
    """A second Docker engine on this machine, which a test may stop and kill: its own socket, data
    root and containerd. At `tcp_address` it wants certificates of `authority`."""

    volume_image = "thundersync/own-volume:1"

    def __init__(self, root: Path, authority: Authority) -> None:
        self.root = root
        self.address = f"unix://{root}/docker.sock"
        self.client_certificates = authority.issue("client")
        self._certificates = authority.issue("server")
        # It sees no network: its listener is made here, and handed over as systemd does.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.tcp_address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._layers_at_rest = 0

    def start(self) -> None:
        command = [
            # Without a bridge of its own it removes docker0, which is the other engine's: so it
            # sees no network at all.
            *("bash", "-c", 'LISTEN_PID=$$ exec "$@" 3<&"$LISTENER"', "engine"),
            *("unshare", "--net", "dockerd", "-H", self.address, "-H", "fd://", "--tlsverify"),
            f"--tlscacert={self._certificates}/ca.pem",
            f"--tlscert={self._certificates}/cert.pem",
            f"--tlskey={self._certificates}/key.pem",
            *("--pidfile", f"{self.root}/pid", "--bridge=none"),
            *("--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/exec"),
            *("--iptables=false", "--ip-forward=false", "--shutdown-timeout=2"),
            *("--cgroup-parent", f"/{self.root.name}"),
            *("--containerd-namespace=own", "--containerd-plugins-namespace=own-plugins"),
        ]
        with (self.root / "log").open("ab") as log:
            listener = self._listener.fileno()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(listener,),
                env=os.environ | {"LISTEN_FDS": "1", "LISTENER": str(listener)},
            )
        give_up = time.monotonic() + 60
        while True:
            client, trouble = engine(self.address)
            if client is not None:
                client.close()
                return
            if time.monotonic() > give_up or self._process.poll() is not None:
                log_tail = (self.root / "log").read_text()[-3000:]
                pytest.fail(f"the test's own engine does not start: {trouble}\n{log_tail}")
            time.sleep(0.2)

    def end(self, number: signal.Signals) -> None:
        """SIGTERM ends its containers first; SIGKILL leaves them running without an engine."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)
        if number == signal.SIGKILL:  # what a killed one leaves can keep the next from starting
            self._kill_others("containerd")
            (self.root / "pid").unlink()
            for left in (self.root / "exec/containerd").glob("containerd*"):
                left.unlink()  # not its state: its shims go on, and are found again by that

    def _control_groups(self, inside: bool = True) -> list[Path]:
        """Of its containers, or the parents of those; version 1 or 2."""
        name = f"{self.root.name}/*" if inside else self.root.name
        base = Path("/sys/fs/cgroup")
        return [path for p in (f"*/{name}", name) for path in base.glob(p) if path.is_dir()]

    def counts_after_kill(self) -> dict[str, int]:
        """Of an engine that was killed itself: control groups, and the layer of a container that
        it was just making, it forgets; nobody can ask it to remove them."""
        counts = self.counts()
        del counts["groups"], counts["layers"]
        return counts

    def _layers(self) -> list[Path]:
        return list((self.root / "data/overlay2").iterdir())

    def rest(self) -> None:
        """What it has now is its own, or what a killed one of an earlier test has forgotten; later
        counts are of more than this."""
        for group in self._control_groups():
            group.rmdir()
        self._layers_at_rest = len(self._layers())

    def revive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start()

    def counts(self) -> dict[str, int]:
        """Of everything that a life could leave in this engine."""
        client = connect(30, self.address)
        groups = self._control_groups()
        try:
            return {
                "containers": len(client.api.containers(all=True)),
                "volumes": len(client.api.volumes()["Volumes"] or []),
                "networks": len(client.api.networks()) - 2,  # none and host are the engine's own
                "folders": sum(1 for _ in (self.root / "data/containers").iterdir()),
                "layers": len(self._layers()) - self._layers_at_rest,
                "groups": len(groups),
                "processes": sum(running_in(group) for group in groups),
            }
        finally:
            client.close()

    def _kill_others(self, name: str) -> None:
        """Of this engine's processes those of that name, or all."""
        for entry in Path("/proc").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError):
                ours = entry.name.isdigit() and str(self.root) in (entry / "cmdline").read_text()
                if ours and name in ("", (entry / "comm").read_text().strip()):
                    os.kill(int(entry.name), signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGTERM)
        self._kill_others("")  # shims of a killed engine
        for group in self._control_groups() + self._control_groups(inside=False):
            group.rmdir()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if mount.startswith(str(self.root)):
                subprocess.run(["umount", "-l", mount], check=True)
        self._listener.close()
        shutil.rmtree(self.root)


@pytest.fixture(scope="session")
def own_engine_at_rest(make_authority: Callable[[], Authority]) -> Iterator[OwnEngine]:
    """With the mini image, and one on it that declares a volume."""
    root = Path(tempfile.mkdtemp(prefix="thundersync-engine."))
    engine_ = OwnEngine(root, make_authority())
    try:
        engine_.start()
        images = subprocess.Popen(["docker", "save", MINI_IMAGE], stdout=subprocess.PIPE)
        into = ["docker", "-H", engine_.address]
        subprocess.run([*into, "load"], stdin=images.stdout, check=True, capture_output=True)
        assert images.wait() == 0
        dockerfile = f"FROM {MINI_IMAGE}\nVOLUME /kept\n".encode()
        build = [*into, "build", "-t", OwnEngine.volume_image, "-"]
        subprocess.run(build, input=dockerfile, check=True, capture_output=True)
        engine_.rest()
        yield engine_
    finally:
        engine_.close()


@pytest.fixture
def own_engine(own_engine_at_rest: OwnEngine) -> Iterator[OwnEngine]:
    own_engine_at_rest.rest()
    yield own_engine_at_rest
    own_engine_at_rest.revive()
