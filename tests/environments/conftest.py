"""A site for sandboxes to reach: nothing here has the internet."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from environments.sandbox.images import MINI_IMAGE, connect
from environments.sandbox.leftovers import reap, remove_container
from environments.sandbox.ownership import owner_labels

# Says who it was asked for, in clear and over TLS.
_SITE = """
import http.server, ssl, subprocess, threading
class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"site saw {self.headers['Host']} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        size = int(self.headers["Content-Length"])
        while size:
            size -= len(self.rfile.read(min(size, 65536)))
        self.do_GET()
subprocess.run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
    "-subj /CN=tls.test -keyout /tmp/key -out /tmp/cert".split(), check=True, stderr=-3)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tmp/cert", "/tmp/key")
for port in (80, 443, 8080):
    server = http.server.ThreadingHTTPServer(("", port), Site)
    if port == 443:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever).start()
"""


@dataclass(frozen=True)
class Site:
    """A container on the engine's default bridge; `mirrors` name it as several hosts."""

    address: str
    mirrors: tuple[str, ...]


@pytest.fixture(scope="session")
def api() -> Iterator[Any]:
    client = connect(60)
    reap(client.api)
    yield client.api
    client.close()


@pytest.fixture(scope="session")
def site(api: Any) -> Iterator[Site]:
    name = f"test-site-{os.getpid()}"
    api.create_container(MINI_IMAGE, ["python3", "-c", _SITE], name=name, labels=owner_labels())
    try:
        api.start(name)
        address = api.inspect_container(name)["NetworkSettings"]["IPAddress"]
        give_up = time.monotonic() + 30
        for port in (80, 443, 8080):
            while True:
                try:
                    socket.create_connection((address, port), timeout=1).close()
                    break
                except OSError:
                    assert time.monotonic() < give_up, "the site does not start"
                    time.sleep(0.1)
        hosts = [("site.test", 80), ("site.test", 8080), ("tls.test", 443), ("a.wild.test", 80)]
        hosts += [("later.test", 80), ("other.test", 80), ("other.test", 443)]
        yield Site(address, tuple(f"{host}:{port}:{address}" for host, port in hosts))
    finally:
        remove_container(api, name)
