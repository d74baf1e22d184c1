"""What the gate makes of a name, an address and the first bytes of a connection."""

from __future__ import annotations

import socket
import ssl
import struct
import threading

import pytest

from environments.sandbox import gate_server
from environments.sandbox.gate_server import (
    PROXY_PORT,
    Gate,
    Refused,
    clean_name,
    is_public,
    matches,
    wanted,
)


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254"),
        *("172.16.0.1", "172.31.255.255", "192.0.2.2", "192.168.1.1", "198.18.0.2", "224.0.0.1"),
        *("240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1"),
        *("64:ff9b::a00:1", "fc00::1", "fe80::1", "fe80::1%eth0", "ff02::1", "2001::1"),
        *("2001:db8::1", "2002:7f00:1::", "gate"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "151.101.0.223", "2a04:4e42::223"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "text",
    [
        *("8.8.8.8", "127.1", "2130706433", "0x7f000001", "0x7f.1", "::1", "[::1]", "a.b.0x7f"),
        *("", ".", "a..b", "a b", "a/b", "a:b", "é.org", "a\0b", "x" * 64, "a." * 127 + "org"),
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(Refused):
        clean_name(text)


def test_names_and_wildcards() -> None:
    assert clean_name("PyPI.org.") == "pypi.org"
    allowed = frozenset({"pypi.org", "*.debian.org"})
    for name in ("pypi.org", "deb.debian.org", "a.b.debian.org"):
        assert matches(name, allowed)
    for name in ("xpypi.org", "pypi.org.evil", "sub.pypi.org", "debian.org", "xdebian.org"):
        assert not matches(name, allowed)


def ask(data: bytes, port: int, cut: int = 65536):
    """What `wanted` makes of a client that sends this, `cut` bytes at a time, and then ends."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        for start in range(0, len(data), cut):
            ours.sendall(data[start : start + cut])
        ours.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        return wanted(theirs, port)
    finally:
        theirs.close()
        sender.join()
        ours.close()


def client_hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same handshake message in TLS records of at most `size` bytes."""
    body, head = hello[5:], hello[:3]
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(head + struct.pack("!H", len(part)) + part for part in parts)


def test_the_server_name_of_a_client_hello_however_it_is_cut() -> None:
    hello = client_hello("Files.PyPI.org")
    for data in (hello, in_records(hello, 7), in_records(hello, 200)):
        for cut in (3, 65536):
            name, port, passed, greeting = ask(data, 443, cut)
            assert (name, port, greeting) == ("files.pypi.org", 443, b"")
            assert data.startswith(passed)  # what has not been read yet is passed on later


def test_tls_without_a_usable_name_is_refused() -> None:
    hello = client_hello(None)
    for data in (hello, client_hello("8.8.8.8"), hello[:60], b"\x16\x03\x01\x00\x05\x01\0\0\x01x"):
        with pytest.raises(Refused):
            ask(data, 443)
    whole = client_hello("pypi.org")
    for end in range(1, len(whole)):
        with pytest.raises(Refused):
            ask(whole[:end], 443)
    with pytest.raises(Refused, match="no TLS ClientHello"):
        ask(b"GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n", 443)


def test_http_by_its_host() -> None:
    request = b"POST /x HTTP/1.1\r\nA: b\r\nHOST: PyPI.org:80\r\n\r\nbody"
    assert ask(request, 80, 5)[:2] == ("pypi.org", 80)
    assert ask(request, 80)[2:] == (request, b"")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.org\r\n Host: b.org\r\n\r\n",
        b"GET http://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.org:x\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.org\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000,
    ],
)
def test_http_that_names_no_single_host_is_refused(request_: bytes) -> None:
    with pytest.raises(Refused):
        ask(request_, 80)


def test_the_proxy() -> None:
    connect = b"CONNECT Git.org:22 HTTP/1.1\r\nHost: other\r\n\r\nSSH"
    assert ask(connect, PROXY_PORT)[:3] == ("git.org", 22, b"SSH")
    get = b"GET http://a.org:8080/p?q HTTP/1.1\r\nHost: b.org\r\nConnection: x\r\nK: v\r\n\r\nbody"
    name, port, passed, greeting = ask(get, PROXY_PORT)
    assert (name, port, greeting) == ("a.org", 8080, b"")
    assert passed == (
        b"GET /p?q HTTP/1.1\r\nHost: a.org:8080\r\nK: v\r\nConnection: close\r\n\r\nbody"
    )
    for line in (
        *("CONNECT 8.8.8.8:443", "CONNECT a.org", "CONNECT a.org:0", "CONNECT [::1]:443"),
        *("GET /x", "GET https://a.org/", "GET http://u@a.org/", "GET http://", "GET ftp://a.org/"),
    ):
        with pytest.raises(Refused):
            ask(f"{line} HTTP/1.1\r\nHost: a.org\r\n\r\n".encode(), PROXY_PORT)


def test_names_that_resolve_to_private_addresses_are_refused_unless_mirrored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        gate = Gate("127.0.0.1", {("mirror.org", port): "127.0.0.1"})
        gate.allow(["localhost", "mirror.org"])
        with pytest.raises(Refused, match="localhost has no public address"):
            gate.connect("localhost", port)
        with pytest.raises(
            Refused, match=r"mirror\.org (cannot be looked up|has no public address)"
        ):
            gate.connect("mirror.org", port + 1)
        with pytest.raises(Refused, match="is not an allowed host"):
            gate.connect("other.org", port)
        gate.connect("mirror.org", port).close()


def test_a_new_list_ends_open_connections_and_those_on_their_way() -> None:
    gate = Gate("127.0.0.1", {})
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    before = gate.round
    gate.register(theirs, before)
    gate.allow([])
    assert ours.recv(1) == b""
    with pytest.raises(Refused):
        gate.register(theirs, before)
    gate.forget(theirs)
    ours.close()


def dns_query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)


def test_dns_knows_allowed_names_alone() -> None:
    gate = Gate("198.18.0.2", {})
    gate.allow(["pypi.org", "*.debian.org"])
    for name in ("pypi.org", "DEB.debian.org"):
        answer = gate.dns_answer(dns_query(name, 1))
        assert struct.unpack("!HHHHHH", answer[:12]) == (7, 0x8180, 1, 1, 0, 0)
        assert answer.endswith(socket.inet_aton("198.18.0.2"))
    nothing_of_that_kind = gate.dns_answer(dns_query("pypi.org", 28))
    assert struct.unpack("!HHHHHH", nothing_of_that_kind[:12]) == (7, 0x8180, 1, 0, 0, 0)
    unknown = gate.dns_answer(dns_query("secret.evil.org", 1))
    assert struct.unpack("!HHHHHH", unknown[:12]) == (7, 0x8183, 1, 0, 0, 0)
    query = dns_query("pypi.org", 1)
    for end in range(len(query)):
        assert gate.dns_answer(query[:end]) == b""


def test_relay_carries_both_ways_and_keeps_half_closed_connections() -> None:
    ours, client = socket.socketpair()
    host, theirs = socket.socketpair()
    relay = threading.Thread(target=gate_server.relay, args=(client, host, b"first "))
    relay.start()
    payload = b"x" * 3_000_000

    def upload() -> None:
        ours.sendall(payload)
        ours.shutdown(socket.SHUT_WR)

    uploader = threading.Thread(target=upload)
    uploader.start()
    received = b""
    while piece := theirs.recv(1 << 20):
        received += piece
    assert received == b"first " + payload
    theirs.sendall(b"late answer")
    theirs.close()
    assert ours.recv(100) == b"late answer" and ours.recv(100) == b""
    uploader.join()
    relay.join(10)
    assert not relay.is_alive()
    for end in (ours, client, host):
        end.close()
