"""Which failures of a start are tried again, how often, and what is said in the end."""

from __future__ import annotations

import asyncio
import time

import pytest
import requests
from docker.errors import APIError, ImageNotFound

from environments.protocols import InfrastructureError
from environments.sandbox import backoff
from environments.sandbox.backoff import TemporaryError, delay_s, start_error


def refusal(status, message, kind=APIError):
    response = requests.Response()
    response.status_code = status
    response._content = message.encode()
    return kind(message, response, explanation=message)


@pytest.mark.parametrize(
    ("error", "kind", "temporary"),
    [
        (refusal(500, "runc: fork: Resource temporarily unavailable"), "start", True),
        (refusal(503, "service unavailable"), "start", True),
        (refusal(500, "context deadline exceeded"), "start", True),
        (refusal(429, "too many requests"), "start", True),
        (requests.ConnectionError("connection refused"), "start", True),
        (requests.ReadTimeout("read timed out"), "start", True),
        (ConnectionResetError(104, "reset"), "start", True),
        (refusal(400, "invalid mount config: bind source path does not exist"), "start", False),
        (refusal(500, 'exec: "python3": executable file not found in $PATH'), "start", False),
        (refusal(409, "the name is in use"), "start", False),
        (refusal(404, "No such image: x:1", ImageNotFound), "image", False),
        (refusal(500, "write /x: no space left on device"), "disk", False),
    ],
)
def test_the_kind_of_a_refusal(error, kind, temporary):
    found = start_error("box-1 (x:1)", error)
    assert found.kind == kind
    assert isinstance(found, TemporaryError) == temporary
    assert "box-1 (x:1)" in str(found)


def test_waits_double_up_to_a_bound_with_jitter():
    waits = [[delay_s(attempt) for _ in range(200)] for attempt in range(backoff.TRIES)]
    for attempt, drawn in enumerate(waits):
        longest_s = min(10.0, 0.25 * 2**attempt)
        assert longest_s / 2 <= min(drawn) < max(drawn) <= longest_s
        assert max(drawn) - min(drawn) > longest_s / 4


def test_a_temporary_failure_is_tried_again_and_each_try_is_removed(backend, spec, monkeypatch):
    monkeypatch.setattr(backoff, "_FIRST_S", 0.01)

    async def scenario(failures):
        async with backend.provider(max_parallel=1) as provider:
            launch, tries = provider._launch, 0

            async def overloaded(sandbox):
                nonlocal tries
                tries += 1
                if tries <= failures:
                    raise TemporaryError("start", "resource temporarily unavailable")
                await launch(sandbox)

            provider._launch = overloaded
            began_s = time.monotonic()
            sandbox = await provider.start(spec)
            assert time.monotonic() - began_s < 30
            assert (await sandbox.exec("echo on", timeout_s=20)).output == "on\n"
            assert (provider.counters.created, provider.counters.removed) == (3, 2)

    asyncio.run(scenario(2))


def test_after_the_last_try_one_line_says_how_often(backend, spec, monkeypatch):
    monkeypatch.setattr(backoff, "_FIRST_S", 0.001)
    monkeypatch.setattr(backoff, "TRIES", 4)

    async def scenario():
        async with backend.provider(max_parallel=1) as provider:

            async def overloaded(sandbox):
                raise TemporaryError("start", "resource temporarily unavailable")

            provider._launch = overloaded
            with pytest.raises(InfrastructureError, match=r"4 tries in \d+ s.*resource temp"):
                await provider.start(spec)
            assert provider.counters.created == provider.counters.removed == 4
            assert provider.places.free == 1

    asyncio.run(scenario())
