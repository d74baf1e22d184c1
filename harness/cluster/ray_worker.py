"""A worker that is a Ray actor: the driver's end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.cluster import monotonic
from harness.cluster.monotonic import Reading
from harness.cluster.protocol import WorkerEnded, WorkerError
from harness.cluster.ray_api import load_ray
from harness.protocols import UsageError

log = logging.getLogger(__name__)  # of a run: job.log
_READINGS = 5  # of another machine's clock, each time
_CLOSE_S = 5.0


@dataclass(frozen=True)
class Place:
    """Where an actor goes: a bundle of a placement group, with all that is in it, or with nothing
    of it where another actor has that."""

    group: Any
    bundle: int
    resources: Mapping[str, float]


class Shared(NamedTuple):
    """A file as one Ray object: whoever is handed it writes it beside itself."""

    name: str
    content: Any


class RayWorker:
    """The Worker protocol over an actor, which dies with this driver. Nothing is tried again here:
    an actor that cannot be reached counts as ended, and is."""

    def __init__(
        self,
        name: str,
        target: str,
        kwargs: dict[str, Any],
        *,
        place: Place,
        threads: int,
        start_timeout_s: float,
        interface_of: str | None = None,
        check: Callable[[RayWorker], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`check` is awaited before the service is made."""
        self.name = name
        self._target, self._kwargs, self._threads = target, kwargs, threads
        self._place, self._limit_s = place, start_timeout_s
        self._interface_of, self._check = interface_of, check
        self._actor: Any = None
        self._number = 0
        self._dead: str | None = None
        self._below = False  # a process below the actor
        self.where: Mapping[str, Any] = {}

    async def start(self) -> None:
        """Raises WorkerEnded also where its place is not there within the time limit."""
        ray = load_ray()
        strategies = load_ray("ray.util.scheduling_strategies")

        from harness.cluster.ray_actor import Actor

        resources = dict(self._place.resources)
        self._actor = (
            ray.remote(Actor)
            .options(
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=10_000,
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                    self._place.group, self._place.bundle
                ),
            )
            .remote()
        )
        try:
            async with asyncio.timeout(self._limit_s):
                self.where = await self._answer(self._actor.where.remote())
        except TimeoutError:
            await self.close()
            raise WorkerEnded(
                f"{self.name}: no place for it within cluster.start_timeout_s={self._limit_s:g} s"
            ) from None
        if self._check is not None:
            await self._check(self)
        building = self._actor.build.remote(
            self.name, self._target, self._kwargs, self._threads, self._interface_of
        )
        self._below = self._value(await self._answer(building))
        log.info("%s: pid %d on %s", self.name, self.where["pid"], self.where["ip"])

    @property
    def pid(self) -> int:
        return self.where["pid"]

    @property
    def elsewhere(self) -> bool:
        """On a machine with a clock, and so with files, of its own."""
        return self.where["clock"] != monotonic.identity()

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a verb of the service; intervals come back in this machine's time."""
        number = self._number
        if args and isinstance(args[0], Shared):
            name, content = args[0]
            asked = self._actor.call_with_file.remote(number, verb, content, name, args[1:])
        else:
            asked = self._actor.call.remote(number, verb, args, kwargs)
        self._number += 1  # what could not be sent has no turn that others wait for
        value = self._value(await self._answer(asked))
        if verb == "drain_intervals" and value and self.elsewhere:
            return monotonic.shifted(value, await self.offset_s())
        return value

    async def exists(self, path: str) -> bool:
        """Whether its machine has this file or folder."""
        return await self._answer(self._actor.exists.remote(path))

    async def offset_s(self) -> float:
        """What its clock is behind ours."""
        readings = []
        for _ in range(_READINGS):
            asked_s = monotonic.now()
            theirs_s = await self._answer(self._actor.now.remote())
            readings.append(Reading(asked_s, theirs_s, monotonic.now()))
        return monotonic.offset_s(readings)[0]

    async def _answer(self, reference: Any) -> Any:
        """What an actor's method returned. Raises WorkerEnded where it will not."""
        exceptions = load_ray("ray.exceptions")

        if self._dead is not None:
            raise WorkerEnded(self._dead)
        waiting = asyncio.wrap_future(reference.future())
        # Whoever gave up waiting does not hear how it ended, and nobody shall be told of that.
        waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            return await asyncio.shield(waiting)
        except exceptions.RayTaskError as error:  # of the actor itself: a defect
            raise WorkerError(f"{self.name}: {error}") from error
        except exceptions.RayActorError as error:
            raise self._actor_ended(_why(error)) from None
        except exceptions.RayError as error:
            raise self._actor_ended(" ".join(str(error).split())) from None

    def _actor_ended(self, why: str) -> WorkerEnded:
        node = f" on {self.where['ip']}" if self.where else ""
        return self._ended(f"{self.name}: the actor ended{node} ({why})")

    def _ended(self, line: str) -> WorkerEnded:
        if self._dead is None:
            self._dead = line
            self._kill()  # one that cannot be reached may live
        return WorkerEnded(self._dead)

    def _value(self, answer: tuple[str, Any]) -> Any:
        kind, value = answer
        if kind == "ok":
            return value
        name, message, trace = value
        if name == UsageError.__name__:
            raise UsageError(message)
        if name == WorkerEnded.__name__:  # of a process below it, which says whose it is
            raise self._ended(f"{message} on {self.where['ip']}")
        if name == WorkerError.__name__:
            raise WorkerError(message)
        raise WorkerError(f"{self.name}: {name}: {message}\n--- in the actor ---\n{trace}")

    def _kill(self) -> None:
        ray = load_ray()
        error = load_ray("ray.exceptions").RayError

        with contextlib.suppress(error, ValueError):
            ray.kill(self._actor, no_restart=True)

    async def close(self) -> None:
        """A service has nothing to save; a process below the actor has files to remove."""
        if self._actor is None or self._dead is not None:
            return
        if self._below:
            with contextlib.suppress(WorkerError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._answer(self._actor.close.remote())
        if self._dead is None:
            self._dead = f"{self.name}: closed"
            self._kill()


def _why(error: Exception) -> str:
    """Ray's reason in a few words, of its many."""
    text = " ".join(str(error).split())
    for known, words in (
        ("node has died", "its node is gone"),
        ("ray.kill", "it was killed by ray.kill"),
        ("unavailable", "it cannot be reached"),
    ):
        if known in text.lower():
            return words
    return "its process has died"
