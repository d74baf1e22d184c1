"""The image command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from environments.protocols import UsageError
from environments.sandbox import images


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "environments.sandbox.images", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=Path(images.__file__).parents[2],
        capture_output=True,
        text=True,
    )


def test_without_an_engine_one_clear_line_and_exit_2():
    outcome = command("build", DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert outcome.returncode == 2 and outcome.stdout == ""
    assert "no Docker engine answers" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_debootstrap_needs_its_program(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="apt-get install debootstrap"):
        images.build_from_debootstrap(None, None)


@pytest.mark.docker
def test_list_names_the_mini_image():
    outcome = command("list")
    assert outcome.returncode == 0, outcome.stderr
    listed = json.loads(outcome.stdout)["images"]
    assert images.MINI_IMAGE in [entry["image"] for entry in listed]


@pytest.mark.docker
def test_base_that_cannot_be_had_names_the_other_way():
    client = images.connect(60)
    try:
        with pytest.raises(UsageError, match="--base debootstrap"):
            images.build_from_image(client, "thundersync.invalid/none:0")
    finally:
        client.close()


@pytest.mark.docker
@pytest.mark.slow
def test_build_on_an_image_that_is_there(monkeypatch):
    """The Dockerfile's text, on the mini image itself in the place of a public Python image."""
    monkeypatch.setattr(images, "MINI_IMAGE", "thundersync/build-test:0")
    monkeypatch.setattr(
        images, "_DOCKERFILE", images._DOCKERFILE.replace("RUN python3 -m pip", "RUN true")
    )
    client = images.connect(300)
    try:
        images.build_from_image(client, "thundersync/mini:1")
        labels = client.api.inspect_image("thundersync/build-test:0")["Config"]["Labels"]
        assert labels == {images.SCRATCH_LABEL: "/testbed"}
    finally:
        client.api.remove_image("thundersync/build-test:0", force=True)
        client.close()
