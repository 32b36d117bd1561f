"""Follows one run from its binding to its end: starts it, settles doubts, listens and asks.

What a stage says is taken in by records/reports.py; here is only when to ask whom. Nothing that
matters is remembered: a restarted registry follows the same run from its row alone.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import structlog

from reelmesh.v1 import stage_pb2
from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.reader import pull
from services.common.transfer.store import BundleStore
from services.registry.backoff import Backoff
from services.registry.database import Database
from services.registry.lifecycle import RunEvent, RunState, holds_slot
from services.registry.peers import Peers
from services.registry.publishing import Publisher
from services.registry.records.bindings import Binding, read_binding
from services.registry.records.changes import make_failure
from services.registry.records.reports import (
    Outcome,
    apply_absence,
    apply_event,
    apply_report,
    mark_tombstoned,
)
from services.registry.signals import Signals, wait
from services.registry.stages import StageCalls
from services.registry.starter import Starter

log = structlog.get_logger()

_RETRY_S = 0.5


class Follower:
    """Follows runs. `dropped_reports` counts those that were about something else."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        peers: Peers,
        calls: StageCalls,
        publisher: Publisher,
        store: BundleStore,
        backoff: Backoff,
        ask_interval_s: float,
        starter: Starter,
    ) -> None:
        self._database = database
        self._signals = signals
        self._peers = peers
        self._calls = calls
        self._publisher = publisher
        self._store = store
        self._backoff = backoff
        self._ask_interval_s = ask_interval_s
        self._starter = starter
        self.dropped_reports = 0
        # The last report of each run that was taken in, while nothing has doubted it since: the
        # same one again is no news, and needs no turn to write.
        self._taken: dict[str, stage_pb2.Run] = {}

    async def follow(self, run_id: str, *, may_send: bool = False) -> RunState | None:
        """Until the run has ended; its last state. Resumes wherever the run is.

        `may_send`: the caller bound it, marked as sent, and leaves it to this call to send the
        start. Nobody else ever has this right, and it is not kept: without it one asks.
        """
        try:
            return await self._follow(run_id, may_send)
        finally:
            self._taken.pop(run_id, None)

    async def _follow(self, run_id: str, may_send: bool) -> RunState | None:
        binding = await self._read(run_id)
        if binding is None:
            return None
        run = binding.run
        telemetry.bind(run_id=run_id, job_id=run.job_id, owner_id=binding.job.owner_id)
        with self._signals.listening(run_id, run.instance_id) as news:
            report, hopeless = await self._starter.start(binding, may_send)
            if report is not None:
                if await self._take(binding, report) is Outcome.LIVE:
                    # It has just said so itself: there is nothing to ask.
                    await self._try(self._listen(binding, news), news)
                binding = await self._read(run_id)
            while binding is not None and holds_slot(binding.run.state):
                news.clear()
                if binding.run.state is RunState.UNKNOWN:
                    self._taken.pop(run_id, None)
                await self._try(self._look(binding, hopeless, news), news)
                binding = await self._read(run_id)
        if binding is None:
            return None
        state = binding.run.state
        log.info("run_settled", state=state, stage=run.stage, bound_to=run.instance_id)
        return state

    async def _try(self, work: Coroutine[Any, Any, None], news: asyncio.Event) -> None:
        try:
            await work
        except MeshError as error:
            log.debug("run_not_reached", reason=error.reason, error=error.message)
            await wait(news, _RETRY_S)

    async def _read(self, run_id: str) -> Binding | None:
        return await self._database.read(lambda session: read_binding(session, run_id))

    async def _look(
        self, binding: Binding, hopeless: stage_pb2.Failure | None, news: asyncio.Event
    ) -> None:
        outcome = await self._ask(binding, hopeless)
        if outcome is Outcome.FOREIGN:
            await wait(news, self._ask_interval_s)
        elif outcome is Outcome.LIVE:
            await self._listen(binding, news)

    async def _ask(self, binding: Binding, hopeless: stage_pb2.Failure | None) -> Outcome:
        run, peer = binding.run, self._peers.peer(binding.endpoint)
        if binding.job.cancel_requested:
            return await self._take(
                binding, await self._calls.cancel_run(peer, run.run_id, run.journal_id)
            )
        try:
            answer = await self._calls.get_run(peer, run.run_id)
        except MeshError as error:
            if error.reason is not Reason.RUN_NOT_FOUND:
                raise
            return await self._bury(binding, hopeless)
        if answer.journal_id != run.journal_id:
            return self.drop(answer.run)
        return await self._take(binding, answer.run)

    async def _bury(self, binding: Binding, hopeless: stage_pb2.Failure | None) -> Outcome:
        """The instance does not know the run: make sure that it never will, then believe it.

        The instance checks the journal: another one proves nothing and raises STALE_RUN.
        """
        run = binding.run
        await self._database.write(lambda session: mark_tombstoned(session, run.run_id))
        peer = self._peers.peer(binding.endpoint)
        report = await self._calls.cancel_run(peer, run.run_id, run.journal_id)
        if report.state != stage_pb2.RUN_STATE_CANCELLED:
            # The start arrived after all, between the question and the tombstone.
            return await self._take(binding, report)
        self._backoff.add(run.instance_id)
        await self._database.write(lambda session: apply_absence(session, run.run_id, hopeless))
        return Outcome.ENDED

    async def _listen(self, binding: Binding, news: asyncio.Event) -> None:
        """Take in what the run's watch says, until there is a reason to ask again."""
        peer = self._peers.peer(binding.endpoint)
        async with aclosing(self._calls.watch_run(peer, binding.run.run_id)) as reports:
            heard = asyncio.ensure_future(anext(reports, None))
            woken = asyncio.ensure_future(news.wait())
            try:
                while True:
                    await asyncio.wait(
                        (heard, woken),
                        timeout=self._ask_interval_s,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    report = heard.result() if heard.done() else None
                    if report is None or await self._take(binding, report) is not Outcome.LIVE:
                        return
                    heard = asyncio.ensure_future(anext(reports, None))
            finally:
                woken.cancel()
                heard.cancel()
                await asyncio.gather(heard, woken, return_exceptions=True)

    async def _take(self, binding: Binding, report: stage_pb2.Run) -> Outcome:
        run_id = binding.run.run_id
        if report == self._taken.get(run_id):
            return Outcome.LIVE
        if report.state == stage_pb2.RUN_STATE_REFUSED:
            # Before the job is back in its queue, or it would be bound there again at once.
            self._backoff.add(binding.run.instance_id)
        outcome = await self._database.write(lambda session: apply_report(session, run_id, report))
        if outcome is Outcome.LIVE:
            self._taken[run_id] = report
        if outcome is Outcome.FOREIGN:
            return self.drop(report)
        if outcome is Outcome.UNPUBLISHED:
            await self._collect(binding, report)
        return outcome

    def drop(self, report: stage_pb2.Run) -> Outcome:
        """Count a report that changes nothing."""
        self.dropped_reports += 1
        log.warning(
            "report_dropped",
            reported_by=report.instance_id,
            reported_generation=report.generation,
            dropped=self.dropped_reports,
        )
        return Outcome.FOREIGN

    async def _collect(self, binding: Binding, report: stage_pb2.Run) -> None:
        """Fetch an MP4 that its decoder could not deliver, and publish it."""
        run, began = binding.run, time.monotonic()
        try:
            bundle = await pull(self._peers.peer(binding.endpoint), report.output, self._store)
            timings = stage_pb2.Run(timings=report.timings).timings
            fetched = timings.add(phase="upload").duration
            fetched.FromTimedelta(timedelta(seconds=time.monotonic() - began))
            await self._publisher.publish_bundle(run.run_id, binding.job, bundle.bundle_id, timings)
        except MeshError as error:
            if error.reason in (Reason.JOB_ENDED, Reason.STALE_RUN):
                return
            if error.retryable or error.reason is Reason.UPLOAD_NOT_FOUND:
                raise
            failure = make_failure(error.reason, error.message, run.stage)
            await self._database.write(
                lambda session: apply_event(session, run.run_id, RunEvent.REPORTED_FAILED, failure)
            )
