"""Engines behind TLS: certificates as docker's own client takes them, and what is wrong with them.

Every tcp:// engine is spoken to with TLS where DOCKER_TLS_VERIFY is set: it must show a certificate
that ca.pem has signed and that names its host, and is shown cert.pem. The three files lie in
DOCKER_CERT_PATH, else in ~/.docker. An engine is never spoken to with TLS and left unverified.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from environments.protocols import UsageError

PLAIN_PORT = 2375
_FILES = ("ca.pem", "cert.pem", "key.pem")
_LIMIT_S = 5.0
_REFUSAL_S = 0.3
# What a failed handshake says -> what is wrong, of `folder`'s files or of the engine's.
_REASONS = (
    ("certificate is not valid for", "the engine's certificate does not name this host"),
    ("hostname mismatch", "the engine's certificate does not name this host"),
    ("certificate has expired", "the engine's certificate has expired"),
    ("not yet valid", "the engine's certificate is not valid yet"),
    ("certificate verify failed", "the engine's certificate was not signed by {folder}/ca.pem"),
    ("alert certificate expired", "the engine says that {folder}/cert.pem has expired"),
    ("alert unknown ca", "the engine does not know who signed {folder}/cert.pem"),
    ("alert bad certificate", "the engine does not accept {folder}/cert.pem"),
    ("alert certificate required", "the engine wants a certificate, and takes none of {folder}"),
    ("wrong version number", "no TLS is spoken there; unset DOCKER_TLS_VERIFY"),
    ("record layer failure", "no TLS is spoken there; unset DOCKER_TLS_VERIFY"),
)
_CLOSED = "the engine ends the connection once it has seen {folder}/cert.pem"
_WANTS_TLS = b"HTTP request to an HTTPS server"


def folder_for(address: str) -> Path | None:
    """Where the certificates for an engine lie; None where TLS is not spoken to it. Raises
    UsageError for a setting that would leave it unverified."""
    if urlsplit(address).scheme != "tcp":
        return None
    given = os.environ.get("DOCKER_CERT_PATH", "")
    if os.environ.get("DOCKER_TLS_VERIFY"):
        return Path(given or "~/.docker").expanduser()
    if given:
        raise UsageError(
            f"DOCKER_CERT_PATH={given}: would not verify {address}; set DOCKER_TLS_VERIFY=1, or "
            "unset DOCKER_CERT_PATH to do without TLS"
        )
    return None


def context_for(address: str) -> ssl.SSLContext | None:
    """What a connection to an engine needs; None without TLS. Raises UsageError, one line, where a
    certificate is missing or no use."""
    folder = folder_for(address)
    if folder is None:
        return None
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"DOCKER_CERT_PATH={folder}: has no {', '.join(missing)}, which TLS to {address} "
            f"needs; put {', '.join(_FILES)} there"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate and its name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    ca, certificate, key = (folder / name for name in _FILES)
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(f"DOCKER_CERT_PATH: {ca} cannot be used: {_said(error)}") from error
    try:
        context.load_cert_chain(certificate, key, password="")  # never asks on the terminal
    except (OSError, ValueError) as error:
        raise UsageError(
            f"DOCKER_CERT_PATH: {certificate} with {key.name} cannot be used: {_said(error)}"
        ) from error
    return context


def client_options(address: str | None) -> dict[str, Any]:
    """Arguments of docker.DockerClient for an engine. Raises UsageError as context_for does."""
    address = address or os.environ.get("DOCKER_HOST")
    if not address:
        return {}
    options: dict[str, Any] = {"base_url": address}
    folder = folder_for(address)
    if folder is not None:
        from docker.tls import TLSConfig

        context_for(address)  # says what is wrong with them in one line
        ca, certificate, key = (str(folder / name) for name in _FILES)
        options["tls"] = TLSConfig(client_cert=(certificate, key), ca_cert=ca, verify=True)
    return options


def trouble(address: str) -> str:
    """Why an engine on TCP does not answer, as far as certificates are to blame; else ''. Blocks
    for some seconds at most."""
    parts = urlsplit(address)
    if parts.scheme != "tcp":
        return ""
    try:
        context = context_for(address)
    except UsageError as error:
        return str(error)
    folder = folder_for(address)
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, parts.port or PLAIN_PORT), timeout=_LIMIT_S) as plain:
            if context is None:
                return _answer(plain, address) or ""
            with context.wrap_socket(plain, server_hostname=host) as secured:
                # A server of TLS 1.3 refuses a client's certificate only after the handshake, and
                # a request on its way to who has just closed can cost the reason.
                secured.settimeout(_REFUSAL_S)
                with contextlib.suppress(TimeoutError):
                    secured.recv(1)
                secured.settimeout(_LIMIT_S)
                said = _answer(secured, address)
                return said if said is not None else f"{address}: {_CLOSED.format(folder=folder)}"
    except ssl.SSLError as error:
        said = str(error).lower().replace("_", " ")
        for mark, reason in _REASONS:
            if mark in said:
                return f"{address}: {reason.format(folder=folder)}"
        return f"{address}: TLS fails: {_said(error)}"
    except OSError:
        return ""  # nobody there, or gone: that is not the certificates' doing


def _answer(connection: socket.socket, address: str) -> str | None:
    """What there is to say of an answer, None where there is none."""
    connection.sendall(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
    said = connection.recv(4096)
    if _WANTS_TLS in said:
        return f"{address}: speaks TLS alone; set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH"
    return "" if said else None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
