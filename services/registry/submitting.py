"""Submits that come at the same time share a transaction (records/submissions.py).

Nobody waits for company: the first one is written at once, and whoever comes while it is written
goes together with the next. So a lone submit is as quick as ever, and many cost little each.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial

import structlog

from reelmesh.v1 import jobs_pb2
from services.common.rpc.errors import MeshError
from services.registry.database import Database
from services.registry.limits import Limits
from services.registry.records.rooms import BATCH
from services.registry.records.submissions import Draft, Verdict, submit_all

log = structlog.get_logger()

_Waiting = tuple[Draft, asyncio.Future[jobs_pb2.CreateJobResponse]]


class Submitting:
    """Writes what is submitted. `submit` is for the event loop."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._limits = limits
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = False

    async def submit(self, draft: Draft) -> jobs_pb2.CreateJobResponse:
        """The job, or why it was refused; as `submit_all`, or UNREACHABLE.

        A caller that is cancelled does not undo it, unless its turn has not come yet.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[jobs_pb2.CreateJobResponse] = loop.create_future()
        self._waiting.append((draft, future))
        if not self._writing:
            self._writing = True
            self._start(self._write_all())
        return await future

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch: list[_Waiting] = []
                while self._waiting and len(batch) < BATCH:
                    one = self._waiting.popleft()
                    if not one[1].done():
                        batch.append(one)
                await self._write(batch)
        finally:
            self._writing = False

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        try:
            verdicts = await self._submit(batch)
        except MeshError as error:
            # The database is away, for all of them; or it was one owner's alone.
            verdicts = [error] * len(batch)
        except Exception as error:  # noqa: BLE001 - whoever asked is told, in _tell
            if len(batch) == 1:
                _tell(batch[0], error)
                return
            # Nothing was written. Whichever of them is to blame shall not take the others along.
            log.warning("submits_failed", submits=len(batch), error=type(error).__name__)
            for one in batch:
                await self._write([one])
            return
        left: dict[str, list[_Waiting]] = {}
        for one, verdict in zip(batch, verdicts, strict=True):
            if verdict is None:
                left.setdefault(one[0].owner_id, []).append(one)
            else:
                _tell(one, verdict)
        for held in left.values():
            # Somebody else has its owner just now: only those of this owner wait for that.
            self._start(self._write(held))

    async def _submit(self, batch: Sequence[_Waiting]) -> Sequence[Verdict | None]:
        drafts = [draft for draft, _ in batch]
        return await self._database.write(partial(submit_all, drafts=drafts, limits=self._limits))


def _tell(one: _Waiting, verdict: jobs_pb2.CreateJobResponse | Exception) -> None:
    future = one[1]
    if future.done():
        return
    if isinstance(verdict, Exception):
        future.set_exception(verdict)
    else:
        future.set_result(verdict)
