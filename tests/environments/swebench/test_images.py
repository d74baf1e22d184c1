"""The images tool without an engine: what it refuses, and the names that it uses."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from swebench.task.checks import expected_image

from environments.protocols import UsageError
from environments.swebench import images
from environments.swebench.engine import with_tag
from environments.swebench.image_names import from_registry, official_image
from environments.swebench.registry import layer_bytes, split_name


@pytest.mark.parametrize("name", ["astropy__astropy-12907", "Own__Repo-1", "plain-3"])
def test_the_official_name_is_swebenchs(name: str) -> None:
    assert official_image(name) == expected_image(name)


def test_names_of_registries_and_tags() -> None:
    assert (
        from_registry("swebench/a:latest", "localhost:5000") == "localhost:5000/swebench/a:latest"
    )
    assert from_registry("ghcr.io/o/a:1", "mirror:80") == "mirror:80/o/a:1"
    assert split_name("swebench/a:2") == ("registry-1.docker.io", "swebench/a", "2")
    assert split_name("python") == ("registry-1.docker.io", "library/python", "latest")
    assert split_name("localhost:5000/a/b") == ("localhost:5000", "a/b", "latest")
    assert with_tag("localhost:5000/a") == "localhost:5000/a:latest"
    assert with_tag("a:1") == "a:1"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to do; use one of list, pull, build, disk"),
        (["fetch"], "'fetch' is unknown"),
        (["list", "pull"], "'pull' is unknown"),
        (["list", "env.user=0"], "'env.user=0' is unknown"),
        (["list", "env.dataset=mini"], "images are not per instance"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert images.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert problem in shown.err
    assert shown.err.count("\n") == 1


def test_a_data_set_that_is_not_there_says_what_to_fetch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert images.main(["pull", f"env.data_dir={tmp_path}"]) == 2
    assert "hf download SWE-bench/SWE-bench_Verified --repo-type dataset" in capsys.readouterr().err


def test_without_an_engine_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from environments.swebench.engine import open_engine

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(
        UsageError, match=r"env.dataset=x: its images need a Docker engine: no Dock"
    ):
        open_engine("env.dataset=x")


LAYERS = [{"digest": "sha256:aa", "size": 7}, {"digest": "sha256:bb", "size": 5}]


class Registry(http.server.BaseHTTPRequestHandler):
    """The part of a registry's interface that sizes come from, with a token and an image index."""

    def do_GET(self) -> None:
        host = f"127.0.0.1:{self.server.server_address[1]}"
        if self.path.startswith("/token?"):
            return self._answer({"token": "t" if "scope=repository%3Ao%2Fa" in self.path else ""})
        if self.headers["Authorization"] != "Bearer t":
            self.send_response(401)
            scope = 'scope="repository:o/a:pull"'
            self.send_header("WWW-Authenticate", f'Bearer realm="http://{host}/token",{scope}')
            self.end_headers()
            return None
        if self.path == "/v2/o/a/manifests/1":
            platforms = [("arm64", "x"), ("amd64", "sha256:cc")]
            return self._answer(
                {
                    "manifests": [
                        {"platform": {"architecture": a}, "digest": d} for a, d in platforms
                    ]
                }
            )
        if self.path == "/v2/o/a/manifests/sha256:cc":
            return self._answer({"layers": LAYERS})
        self.send_response(404)
        self.end_headers()
        return None

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_registry_tells_what_layers_weigh(registry: str) -> None:
    assert layer_bytes(f"{registry}/o/a:1") == {"sha256:aa": 7, "sha256:bb": 5}
    with pytest.raises(OSError):
        layer_bytes(f"{registry}/o/a:2")
    with pytest.raises(OSError):
        layer_bytes("127.0.0.1:9/o/a:1")
