"""What runs inside an actor: one service object, called as a worker process's is
(harness.cluster.worker), and a few questions about where that is.

An asynchronous service, which may start processes of its own, is in a worker process below the
actor: what it starts ends with it as it does without Ray, and finds nothing of Ray around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.sandbox.ownership import folder_prefix, reap_folders
from harness.cluster import monotonic
from harness.cluster.local import Worker, environment
from harness.cluster.memory import keep_memory
from harness.cluster.ray_api import load_ray
from harness.cluster.worker import is_asynchronous, load, wants_reply

Answer = tuple[str, Any]


class Below:
    """A service in a worker process: each of its verbs is a coroutine."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return functools.partial(self.worker.call, verb)


class Actor:
    """Calls begin in the order of their numbers, whatever order they arrive in: an actor whose
    calls overlap promises none. What a service does without waiting holds all others up, as in a
    worker process; a coroutine does not."""

    def __init__(self) -> None:
        self._service: Any = None
        self._next = 0
        self._turn = asyncio.Condition()
        self._working: asyncio.Task[None] | None = None

    async def where(self) -> dict[str, Any]:
        """Which process this is, and whose monotonic clock it has."""
        ip = load_ray("ray.util").get_node_ip_address()
        return {"pid": os.getpid(), "ip": ip, "clock": monotonic.identity()}

    async def now(self) -> float:
        return monotonic.now()

    async def exists(self, path: str) -> bool:
        return Path(path).exists()

    async def build(
        self,
        name: str,
        target: str,
        kwargs: dict[str, Any],
        threads: int,
        interface_of: str | None = None,
    ) -> Answer:
        """Make the service, in a process that computes with so many threads; whether there is
        anything to `close`. `interface_of`: its collectives go through the network interface that
        has this address, not through the machine's own loop."""
        os.environ.update(environment(threads))  # read by what is imported from here on
        keep_memory()  # which malloc has read its environment for already
        if interface_of is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface(interface_of)
        await asyncio.to_thread(reap_folders)  # of one that was killed with a file at hand
        try:
            service = load(target)
            if below := is_asynchronous(service):
                self._service = Below(Worker(name, target, kwargs, threads=threads))
                await self._service.worker.start()
            else:
                self._service = service(**kwargs)
        except Exception as error:
            return _raised(error)
        return "ok", below

    async def close(self) -> None:
        """End the process below."""
        if isinstance(self._service, Below):
            await self._service.worker.close()

    async def call(self, number: int, verb: str, args: Any, kwargs: Any) -> Answer:
        """Answers ("ok", value) or ("error", (type, message, trace))."""
        return await self._in_turn(number, lambda: self._begin(verb, args, kwargs))

    async def call_with_file(
        self, number: int, verb: str, content: bytes, name: str, args: Any
    ) -> Answer:
        """The same with a file's content for the first argument; the file is gone once the verb has
        answered. Where it cannot be written its turn passes all the same: others wait for it."""
        with contextlib.ExitStack() as stack:
            try:
                made = tempfile.TemporaryDirectory(prefix=folder_prefix("ray"))
                path = Path(stack.enter_context(made)) / name
                await asyncio.to_thread(path.write_bytes, content)
            except OSError as error:
                raised = _raised(error)
                return await self._in_turn(number, lambda: raised)
            return await self.call(number, verb, (str(path), *args), {})

    async def _in_turn(self, number: int, begin: Callable[[], Any]) -> Answer:
        """What `begin` returned, awaited where that has to be."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._next == number)
            answer = begin()
            self._next += 1
            self._turn.notify_all()
        if inspect.isawaitable(answer):
            try:
                return "ok", await answer
            except Exception as error:
                return _raised(error)
        return answer

    def _begin(self, verb: str, args: Any, kwargs: Any) -> Any:
        """The answer, or what is to be awaited for its value."""
        try:
            method = getattr(self._service, verb)
            if wants_reply(method):
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                method(future.set_result, *args, **kwargs)
                if self._working is None or self._working.done():
                    self._working = asyncio.create_task(self._work())
                return future
            value = method(*args, **kwargs)
        except Exception as error:
            return _raised(error)
        return value if inspect.isawaitable(value) else ("ok", value)

    async def _work(self) -> None:
        """Steps of the service for as long as it has any, and between them whoever has come. A
        defect ends the process, as it does a worker's: nobody shall wait for its answers."""
        try:
            while self._service.has_work():
                self._service.work()
                await asyncio.sleep(0)
        except Exception:
            traceback.print_exc()
            os._exit(1)


def _raised(error: Exception) -> Answer:
    return "error", (type(error).__name__, str(error), traceback.format_exc())


def interface(address: str) -> str:
    """The network interface that has this address. Raises ValueError where none has."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return name
    raise ValueError(f"no network interface has the address {address}")
