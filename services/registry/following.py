"""Keeps one task on every live run that is this registry's to follow."""

import asyncio

import structlog

from services.common.rpc.errors import MeshError
from services.registry.database import Database
from services.registry.follower import Follower
from services.registry.records.replicas import ADOPTED, followers
from services.registry.signals import Signals, wait

log = structlog.get_logger()

_LOOK_S = 1.0


class Following:
    """Follows what it is told, and what it finds in the database."""

    def __init__(
        self, database: Database, signals: Signals, follower: Follower, replica_id: str
    ) -> None:
        self._database = database
        self._signals = signals
        self._follower = follower
        self._replica_id = replica_id
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Held while something is bound until it is followed with the right to send its start: who
        # finds it in the database has none.
        self.binding = asyncio.Lock()

    async def run(self) -> None:
        """Take up our live runs and let go of those that another took over, until cancelled."""
        try:
            with self._signals.listening(ADOPTED) as news:
                while True:
                    news.clear()
                    await self._look()
                    await wait(news, _LOOK_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        async with self.binding:
            for run_id, replica_id in (await self._database.read(followers)).items():
                if replica_id == self._replica_id:
                    self.follow(run_id)
                elif run_id in self._tasks:
                    log.warning("run_taken_over", run_id=run_id, by=replica_id)
                    self._tasks[run_id].cancel()

    def follow(self, run_id: str, *, may_send: bool = False) -> None:
        """See this run through, if nobody here does. `may_send`: see Follower.follow."""
        if run_id not in self._tasks:
            task = asyncio.create_task(self._see_through(run_id, may_send), name=run_id)
            self._tasks[run_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(run_id, None))

    async def _see_through(self, run_id: str, may_send: bool) -> None:
        while True:
            try:
                sends, may_send = may_send, False
                await self._follower.follow(run_id, may_send=sends)
            except MeshError as error:
                log.warning("follower_interrupted", run_id=run_id, reason=error.reason)
                await asyncio.sleep(_LOOK_S)
            except Exception:
                log.exception("follower_crashed", run_id=run_id)
                await asyncio.sleep(_LOOK_S)
            else:
                return
