"""A worker process: one service object behind a pipe.

Started as `python -m harness.cluster.worker FD`. A service is any object whose public methods are
verbs: a plain method's return value is the answer; a method may instead take `reply` (a callable)
as its first parameter and answer later, from `work()`, which is called while `has_work()` is true.
That is how an engine batches requests that arrive at any time, with no thread. A service with
`async def start()` is asynchronous: its verbs are coroutines, and run side by side in one loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
_WORKER = "HARNESS_WORKER_PID"  # in the environment of what its service starts


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descends_from(pid: int) -> bool:
    """Whether this process is `pid` or below it. That such a number is known says nothing: one that
    ended may wait to be reaped, or its number be another's by now."""
    import psutil

    try:
        own = psutil.Process()
        return pid in (own.pid, *(ancestor.pid for ancestor in own.parents()))
    except psutil.NoSuchProcess:
        return False


def end_with_worker() -> None:
    """Of a process that a service started: from here on the kernel ends it when its parent ends.
    Where the worker is gone already, nobody waits."""
    die_with_parent()
    worker = os.environ.get(_WORKER)
    if worker is not None and not descends_from(int(worker)):
        os._exit(1)


def load(dotted: str) -> Any:
    """The object behind 'package.module:Name'."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)


def wants_reply(method: Callable[..., Any]) -> bool:
    """Whether it answers later, through its first parameter."""
    return next(iter(inspect.signature(method).parameters), None) == "reply"


def is_asynchronous(service: Any) -> bool:
    """Of a service or its class. Such a one may start processes of its own."""
    return inspect.iscoroutinefunction(getattr(service, "start", None))


def serve(connection: Connection) -> None:
    """Answer calls until the connection closes."""
    target, kwargs = connection.recv()
    try:
        service = load(target)(**kwargs)
    except Exception as error:
        connection.send((0, "error", _told(error)))
        return
    if is_asynchronous(service):
        asyncio.run(_serve_loop(service, connection))
        return
    connection.send((0, "ok", None))
    has_work = getattr(service, "has_work", lambda: False)
    while True:
        try:
            while connection.poll(0 if has_work() else None):
                if not _answer(service, connection):
                    return
            if has_work():
                service.work()
        except (EOFError, ConnectionError):
            return


def _answer(service: Any, connection: Connection) -> bool:
    number, verb, args, kwargs = connection.recv()
    if verb == "__close__":
        connection.send((number, "ok", None))
        return False

    def reply(value: Any) -> None:
        connection.send((number, "ok", value))

    try:
        method = getattr(service, verb)
        if wants_reply(method):
            method(reply, *args, **kwargs)
        else:
            reply(method(*args, **kwargs))
    except Exception as error:
        connection.send((number, "error", _told(error)))
    return True


def _told(error: Exception) -> tuple[str, str, str]:
    return type(error).__name__, str(error), "".join(traceback.format_exception(error))


async def _serve_loop(service: Any, connection: Connection) -> None:
    """`serve` of an asynchronous service."""
    loop = asyncio.get_running_loop()
    closing: asyncio.Future[int | None] = loop.create_future()
    answers: set[asyncio.Task[None]] = set()

    async def answer(number: int, verb: str, args: Any, kwargs: Any) -> None:
        try:
            sent = (number, "ok", await getattr(service, verb)(*args, **kwargs))
        except Exception as error:
            sent = (number, "error", _told(error))
        connection.send(sent)

    def readable() -> None:
        try:
            while not closing.done() and connection.poll(0):
                number, verb, args, kwargs = connection.recv()
                if verb == "__close__":
                    closing.set_result(number)
                    return
                task = loop.create_task(answer(number, verb, args, kwargs))
                answers.add(task)
                task.add_done_callback(answers.discard)
        except (EOFError, ConnectionError):
            closing.set_result(None)

    try:
        await service.start()
    except Exception as error:
        connection.send((0, "error", _told(error)))
        await service.close()
        return
    connection.send((0, "ok", None))
    loop.add_reader(connection.fileno(), readable)
    number = await closing
    loop.remove_reader(connection.fileno())
    await service.close()
    if number is not None:
        connection.send((number, "ok", None))


def main() -> None:
    die_with_parent()
    os.environ[_WORKER] = str(os.getpid())
    # Ctrl-C reaches the whole process group; the parent decides what ends and in which order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    affinity = os.environ.get("HARNESS_WORKER_AFFINITY")
    if affinity:
        os.sched_setaffinity(0, {int(core) for core in affinity.split(",")})
    serve(Connection(int(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a service has nothing to save, and unloading torch takes seconds


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # multiprocessing runs its parent's main module before anything else, in what a service starts
    # (vLLM does: vllm#55510) and in what that starts.
    end_with_worker()
