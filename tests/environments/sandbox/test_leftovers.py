"""What dead runs have left is removed, whatever kind of thing it is; what is alive stays."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from docker.errors import NotFound

from environments.protocols import InfrastructureError
from environments.sandbox.docker import DockerProvider
from environments.sandbox.images import MINI_IMAGE, connect
from environments.sandbox.leftovers import anonymous_volumes, reap, remove_container
from environments.sandbox.ownership import folder_prefix, owner_labels, reap_folders

DEAD = {"thundersync.pid": "999999999"}


@pytest.fixture
def api():
    client = connect(60)
    yield client.api
    client.close()


def there(look, name):
    try:
        look(name)
    except NotFound:
        return False
    return True


def container(api, name, labels, **options):
    """With an anonymous volume at /kept; returns that volume's name."""
    host = api.create_host_config(**options)
    api.create_container(
        MINI_IMAGE, ["sleep", "1000"], name=name, labels=labels, volumes=["/kept"], host_config=host
    )
    api.start(name)
    (volume,) = anonymous_volumes(api.inspect_container(name)["Mounts"])
    return volume


@pytest.mark.docker
def test_dead_runs_things_go_and_living_ones_stay(api):
    token = f"test-leftovers-{os.getpid()}"
    owners = {"dead": {**owner_labels(), **DEAD}, "alive": owner_labels()}
    anonymous = {}
    try:
        for owner, labels in owners.items():
            name = f"{token}-{owner}"
            api.create_volume(f"{name}-volume", labels=labels)
            api.create_network(f"{name}-network", labels=labels)
            anonymous[owner] = container(api, name, labels, network_mode=f"{name}-network")
        reap(api)
        for owner, stays in (("dead", False), ("alive", True)):
            name = f"{token}-{owner}"
            assert there(api.inspect_container, name) == stays
            assert there(api.inspect_volume, f"{name}-volume") == stays
            assert there(api.inspect_network, f"{name}-network") == stays
            assert there(api.inspect_volume, anonymous[owner]) == stays
    finally:
        name = f"{token}-alive"
        remove_container(api, name, [anonymous["alive"], f"{name}-volume"])
        api.remove_network(f"{name}-network")
    assert not there(api.inspect_volume, anonymous["alive"])


@pytest.mark.docker
def test_a_container_goes_with_volumes_that_outlived_it(api):
    """The engine forgets an anonymous volume's container where that was removed without it."""
    name = f"test-outlived-{os.getpid()}"
    volume = container(api, name, {})
    api.remove_container(name, force=True, v=False)
    assert there(api.inspect_volume, volume)
    remove_container(api, name, [volume])
    assert not there(api.inspect_volume, volume)
    remove_container(api, name, [volume])


def test_folders_of_dead_processes_go(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "thundersync-bwrap.999999999.1.abc").mkdir()
    (tmp_path / "thundersync-ray.999999999.1" / "session").mkdir(parents=True)
    reused = Path(tempfile.mkdtemp(prefix=f"thundersync-parity.{os.getpid()}.1."))
    stay = [tempfile.mkdtemp(prefix=folder_prefix("ray")), tempfile.mkdtemp(prefix="thundersync-")]
    assert reap_folders() == 3
    assert not reused.exists()
    assert sorted(map(str, tmp_path.iterdir())) == sorted(stay)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "thundersync-ray.999999999.1").mkdir(parents=True)
    assert reap_folders(elsewhere) == 1


@pytest.mark.docker
@pytest.mark.parametrize("seen_from_here", [True, False])
def test_below_the_disk_watermark_nothing_starts(spec, api, seen_from_here):
    """Another machine's disk is looked at from inside the first sandbox that starts there."""

    async def scenario(disk_free_mb, starts):
        provider = await DockerProvider.open(
            run_id="disk", max_parallel=4, why="", disk_free_mb=disk_free_mb
        )
        (engine,) = provider.engines.values()
        if not seen_from_here:
            engine._data_root = None
        try:
            for _ in range(starts):
                await (await provider.start(spec)).stop()
            with pytest.raises(InfrastructureError, match=r"MB are free.*disk_free_mb=10") as low:
                await provider.start(spec)
            assert low.value.kind == "disk"
            assert engine.free_mb == pytest.approx(shutil.disk_usage("/").free >> 20, rel=0.2)
            filters = {"label": f"thundersync.provider={provider._token}"}
            assert not api.containers(all=True, filters=filters)
        finally:
            await provider.close()

    asyncio.run(scenario(10**9, starts=0 if seen_from_here else 1))


@pytest.mark.docker
def test_above_the_disk_watermark_sandboxes_start(spec):
    async def scenario():
        provider = await DockerProvider.open(run_id="disk", max_parallel=4, why="", disk_free_mb=1)
        await provider.start(spec)
        await provider.close()
        assert provider.counters.leaked == 0

    asyncio.run(scenario())
