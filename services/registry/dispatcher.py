"""Binds waiting stages to free instances.

The three stages are three queues: while a decoder decodes one job, the sampler samples the next.
Every binding is committed before its follower makes the first call. It is committed as sent: the
right to send its start is handed to its follower in memory, and is gone if either of them is.
"""

import asyncio
from functools import partial

from services.registry.backoff import Backoff
from services.registry.database import Database
from services.registry.following import Following
from services.registry.lifecycle import Stage
from services.registry.peers import Peers
from services.registry.records.claims import BATCH, Rules, claim_all
from services.registry.records.events import QUEUES
from services.registry.records.waiting import waiting_stages
from services.registry.roster import Roster
from services.registry.signals import Signals, wait

# A slot that is free is told of at once; this is for what nobody could tell.
_LOOK_S = 1.0
# A sampler that stands idle costs the most; then the last stage, which frees the most.
_ORDER = (Stage.SAMPLE, Stage.DECODE, Stage.ENCODE)


class Dispatcher:
    """One task for the queues. Registries on one database share them."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        roster: Roster,
        peers: Peers,
        following: Following,
        backoff: Backoff,
        rules: Rules,
    ) -> None:
        self._database = database
        self._signals = signals
        self._roster = roster
        self._peers = peers
        self._following = following
        self._backoff = backoff
        self._rules = rules

    async def run(self) -> None:
        """Bind whatever can be bound, until cancelled."""
        with self._signals.listening(QUEUES) as news:
            while True:
                news.clear()
                await self._bind_all(news)
                await wait(news, min(_LOOK_S, self._backoff.next_s()))

    async def _bind_all(self, news: asyncio.Event) -> None:
        instances = await self._roster.read()
        await self._peers.keep_only({one.endpoint for one in instances})
        reachable = self._peers.reachable(instances)
        willing = self._backoff.without(reachable)

        waiting = await self._database.read(waiting_stages)
        while waiting:
            served = waiting & {one.stage for one in instances if one.instance_id in willing}
            waiting = set()
            for stage in (stage for stage in _ORDER if stage in served):
                bind = partial(
                    claim_all,
                    stage=stage,
                    willing=willing,
                    reachable=reachable,
                    rules=self._rules,
                )
                async with self._following.binding:
                    run_ids = await self._database.write(bind)
                    for run_id in run_ids:
                        self._following.follow(run_id, may_send=True)
                if len(run_ids) == BATCH:
                    waiting.add(stage)
            # What refused meanwhile is not asked again at once.
            willing = self._backoff.without(willing)
            if waiting and news.is_set():
                news.clear()
                waiting = await self._database.read(waiting_stages)
            elif Stage.SAMPLE in waiting:
                # What is sampled makes room for what may be encoded.
                waiting.add(Stage.ENCODE)
