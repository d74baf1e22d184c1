"""The Teacher protocol over a worker process, which is started again when it dies. Torch-free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from harness.cluster.local import Worker
from harness.cluster.protocol import MakeWorker, WorkerEnded
from harness.cluster.protocol import Worker as AnyWorker
from harness.protocols import Interval, TeacherScores
from harness.teachers.protocol import ScoreRequest, TeacherError


class TorchTeacherClient:
    """Awaited verbs of harness.teachers.torch_teacher.TorchTeacher. A request that its death cut
    short raises TeacherError; the next one finds a new process. What a service raises is a defect,
    and ends the run."""

    TARGET = "harness.teachers.torch_teacher:TorchTeacher"

    def __init__(
        self,
        path: Path,
        *,
        sessions: int,
        threads: int = 1,
        affinity: Sequence[int] | None = None,
        name: str = "teacher/0",
        worker: MakeWorker = Worker,
    ) -> None:
        self._make = worker
        self._name, self._threads, self._affinity = name, threads, affinity
        self._options = {"path": str(path), "sessions": sessions, "threads": threads, "name": name}
        self._worker = self._fresh()
        self._restarting = asyncio.Lock()
        self.restarts = 0

    def _fresh(self) -> AnyWorker:
        return self._make(
            self._name, self.TARGET, self._options, threads=self._threads, affinity=self._affinity
        )

    async def start(self) -> None:
        await self._worker.start()

    @property
    def pid(self) -> int:
        return self._worker.pid

    async def score(self, request: ScoreRequest) -> TeacherScores:
        worker = self._worker
        try:
            return await worker.call("score", request)
        except WorkerEnded as error:
            await self._restart(worker)
            raise TeacherError(str(error)) from error

    async def _restart(self, dead: AnyWorker) -> None:
        """Once, however many requests it has cut short. Raises TeacherError where the new process
        does not come up either."""
        async with self._restarting:
            if self._worker is not dead:
                return
            await dead.close()
            fresh = self._fresh()
            try:
                await fresh.start()
            except WorkerEnded as error:
                await fresh.close()
                raise TeacherError(str(error)) from error
            self._worker = fresh
            self.restarts += 1

    async def release(self, session: str) -> None:
        await self._unless_dead("release", session)

    async def drain_intervals(self) -> list[Interval]:
        return await self._unless_dead("drain_intervals") or []

    async def _unless_dead(self, verb: str, *arguments: str) -> list[Interval] | None:
        """What a dead process would have said is gone with it."""
        try:
            return await self._worker.call(verb, *arguments)
        except WorkerEnded:
            return None

    async def close(self) -> None:
        await self._worker.close()
