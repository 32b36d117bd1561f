"""Binds waiting stages to free instances, and keeps a follower on every run that is live.

The three stages are three queues: while a decoder decodes one job, the sampler samples the next.
Every binding is committed before its follower makes the first call.
"""

import asyncio

import structlog

from services.registry.backoff import Backoff
from services.registry.database import Database
from services.registry.follower import Follower
from services.registry.lifecycle import Stage
from services.registry.peers import Peers
from services.registry.records.bindings import claim, live_runs
from services.registry.records.events import QUEUES
from services.registry.records.instances import present
from services.registry.signals import Signals, wait

log = structlog.get_logger()

_LOOK_S = 1.0
# The last stage first: it frees the most.
_ORDER = tuple(reversed(Stage))


class Dispatcher:
    """One task for the queues, and one for every live run."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        peers: Peers,
        follower: Follower,
        backoff: Backoff,
        encoded_ahead: int,
    ) -> None:
        self._database = database
        self._signals = signals
        self._peers = peers
        self._follower = follower
        self._backoff = backoff
        self._encoded_ahead = encoded_ahead
        self._following: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Take up all live runs, then bind whatever can be bound, until cancelled."""
        try:
            for run_id in await self._database.read(live_runs):
                self._follow(run_id)
            with self._signals.listening(QUEUES) as news:
                while True:
                    news.clear()
                    await self._bind_all()
                    await wait(news, _LOOK_S)
        finally:
            for task in self._following.values():
                task.cancel()
            await asyncio.gather(*self._following.values(), return_exceptions=True)

    async def _bind_all(self) -> None:
        instances = await self._database.read(present)
        await self._peers.keep_only({one.endpoint for one in instances})
        reachable = self._peers.reachable(instances)
        for stage in _ORDER:
            while run_id := await self._bind(stage, reachable):
                self._follow(run_id)

    async def _bind(self, stage: Stage, reachable: set[str]) -> str | None:
        willing = self._backoff.without(reachable)
        return await self._database.write(
            lambda session: claim(session, stage, willing, reachable, self._encoded_ahead)
        )

    def _follow(self, run_id: str) -> None:
        if run_id not in self._following:
            task = asyncio.create_task(self._see_through(run_id), name=run_id)
            self._following[run_id] = task
            task.add_done_callback(lambda _: self._following.pop(run_id, None))

    async def _see_through(self, run_id: str) -> None:
        while True:
            try:
                await self._follower.follow(run_id)
            except Exception:
                log.exception("follower_crashed", run_id=run_id)
                await asyncio.sleep(_LOOK_S)
            else:
                return
