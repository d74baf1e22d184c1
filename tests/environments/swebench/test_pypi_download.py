"""Downloads of the pypi data set, with a folder in place of a package index."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.protocols import UsageError
from environments.swebench.pypi.download import fetch_sdists
from environments.swebench.pypi.releases import Pin

PKG_INFO = b"Metadata-Version: 2.1\nName: lemon\nVersion: 1.0\n"
SETUP = b"open(r'%s', 'w').write('code of the release ran')\n"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}


def write_sdist(folder: Path, marker: Path) -> bytes:
    """lemon-1.0.tar.gz, whose setup.py leaves `marker` behind where it is run."""
    folder.mkdir()
    with tarfile.open(folder / "lemon-1.0.tar.gz", "w:gz") as archive:
        setup = SETUP % os.fsencode(marker)
        for name, content in {"PKG-INFO": PKG_INFO, "setup.py": setup}.items():
            info = tarfile.TarInfo(f"lemon-1.0/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return (folder / "lemon-1.0.tar.gz").read_bytes()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_download_runs_no_code_of_the_release(tmp_path: Path, index: Path) -> None:
    marker = tmp_path / "marker"
    content = write_sdist(index, marker)
    pin = Pin("lemon", "1.0", hashlib.sha256(content).hexdigest())
    fetch_sdists([pin], tmp_path / "sdists", tmp_path / "scratch")
    assert (tmp_path / "sdists" / "lemon-1.0.tar.gz").read_bytes() == content
    assert not marker.exists()


def test_an_index_that_serves_other_bytes_is_refused(tmp_path: Path, index: Path) -> None:
    write_sdist(index, tmp_path / "marker")
    with pytest.raises(UsageError, match=r"pip download lemon: .*HASHES"):
        fetch_sdists([Pin("lemon", "1.0", "0" * 64)], tmp_path / "sdists", tmp_path / "scratch")
    assert list((tmp_path / "sdists").iterdir()) == []
    assert not (tmp_path / "marker").exists()


def test_a_tampered_sdist_in_the_cache_is_refused(tmp_path: Path, index: Path) -> None:
    content = write_sdist(tmp_path / "sdists", tmp_path / "marker")
    pin = Pin("lemon", "1.0", hashlib.sha256(content).hexdigest())
    fetch_sdists([pin], tmp_path / "sdists", tmp_path / "scratch")
    (tmp_path / "sdists" / pin.sdist_name).write_bytes(content[:-1] + b"!")
    with pytest.raises(UsageError, match=r"lemon-1\.0\.tar\.gz: SHA-256 is .*, not the pinned"):
        fetch_sdists([pin], tmp_path / "sdists", tmp_path / "scratch")


def start_build(data_dir: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "environments.swebench.pypi", f"data_dir={data_dir}"]
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def silent_index() -> Iterator[str]:
    """The address of an index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_an_interrupted_build_leaves_no_data_set(
    tmp_path: Path, silent_index: str, number: signal.Signals, code: int
) -> None:
    process = start_build(tmp_path, PIP_INDEX_URL=silent_index, PIP_CONFIG_FILE=os.devnull)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".building-*/scratch/requirements.txt")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert output == ""
    assert list(tmp_path.glob("data-*")) == []
    if number == signal.SIGKILL:  # nobody could clean up: the next build does
        assert len(list(tmp_path.glob(".building-*"))) == 1
        start_build(tmp_path, **OFFLINE).communicate(timeout=60)
    assert list(tmp_path.glob(".building-*")) == []


def test_without_an_index_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    process = start_build(tmp_path, **OFFLINE)
    output, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if not line.startswith("downloading")]
    assert process.returncode == 2
    assert output == ""
    assert len(lines) == 1 and "it needs a package index" in lines[0], errors
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("data", ".b"))] == []
