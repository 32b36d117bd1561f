"""Does the runs: pull the input, let the engine work in a thread, commit the output, deliver it.

One task a run; the slot is its journal entry, held until the entry is terminal.
"""

import asyncio
import time

import structlog

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common import telemetry
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.book import Book, Entry, State
from services.common.stage.failures import describe_failure, make_failure
from services.common.stage.order import Deliver, Order, Output
from services.common.stage.source import Sources
from services.common.transfer.store import BundleStore
from services.common.work import Cancelled, Watch

log = structlog.get_logger()

_RETRY_JOURNAL_S = 1.0
_SLOT_WAIT_S = 0.5


class Runs:
    """Starts and cancels the runs of one instance."""

    def __init__(
        self,
        book: Book,
        store: BundleStore,
        sources: Sources,
        deliver: Deliver | None = None,
    ) -> None:
        self._book = book
        self._store = store
        self._sources = sources
        self._deliver = deliver
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watches: dict[str, Watch] = {}
        self._pulls: dict[str, asyncio.Task[object]] = {}
        self._stopping = False
        self._draining = False

    async def start(self, order: Order) -> Entry:
        """Take an order, or find the run that an equal start made before."""
        # Shielded: a caller that hangs up must not leave a run accepted and never begun.
        return await asyncio.shield(asyncio.ensure_future(self._start(order)))

    async def cancel(self, run_id: str, stage: stage_pb2.Stage) -> Entry:
        """Ask a run to stop; bury one that was never seen."""
        entry = await asyncio.shield(asyncio.ensure_future(self._book.bury(run_id, stage)))
        if entry.live and (watch := self._watches.get(run_id)):
            self._book.request_cancel(run_id)
            watch.cancel()
            if pull := self._pulls.get(run_id):
                pull.cancel()
        return entry

    def drain(self) -> None:
        """Refuse every new run; those that were accepted go on."""
        self._draining = True

    async def stop(self, grace_s: float) -> None:
        """Take nothing more, interrupt what runs, and wait for it at most `grace_s`."""
        self._stopping = True
        for run_id in list(self._tasks):
            await self.cancel(run_id, stage_pb2.STAGE_UNSPECIFIED)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)

    async def _start(self, order: Order) -> Entry:
        run_id = order.spec.run_id
        refusal = Reason.DRAINING if self._stopping or self._draining else None
        try:
            self._store.space.reserve(run_id, order.output_bytes)
        except MeshError as error:
            refusal = refusal or error.reason
        if refusal is None:
            # The registry hears of a published run a moment before this journal has its end.
            await self._book.wait_for_slot(_SLOT_WAIT_S)
        entry, fresh = await self._book.accept(order, refusal)
        if not entry.live:
            self._store.space.release(run_id)
        if fresh:
            loop = asyncio.get_running_loop()

            def report(phase: str, done: int, total: int) -> None:
                loop.call_soon_threadsafe(self._book.report, run_id, phase, done, total)

            self._watches[run_id] = watch = Watch(report)
            task = asyncio.create_task(self._do(order, watch), name=run_id)
            self._tasks[run_id] = task
            task.add_done_callback(lambda _: self._forget(run_id))
        return entry

    def _forget(self, run_id: str) -> None:
        for held in (self._tasks, self._watches, self._pulls):
            held.pop(run_id, None)
        self._store.space.release(run_id)

    async def _do(self, order: Order, watch: Watch) -> None:
        spec = order.spec
        telemetry.bind(run_id=spec.run_id, job_id=spec.job_id, owner_id=spec.owner_id)
        timings: dict[str, float] = {}
        bundle_id = new_id("bun")
        began = time.monotonic()
        log.info("run_started", stage=stage_pb2.Stage.Name(order.stage))
        try:
            await self._book.begin(spec.run_id, bundle_id)
            bundle = await self._make(order, watch, bundle_id, timings)
            artifact_id = await self._hand_over(order, watch, bundle, timings)
        except (Cancelled, asyncio.CancelledError):
            self._store.delete(bundle_id)
            if self._stopping:
                words = "the service was stopped during the run"
                failure = make_failure(Reason.INTERRUPTED, words, order.stage)
                ending = self._end(spec, State.RUN_STATE_FAILED, timings, failure)
            else:
                ending = self._end(spec, State.RUN_STATE_CANCELLED, timings)
        except Exception as error:  # noqa: BLE001 - the boundary of a run: it is the run's failure
            failure = describe_failure(error, order.stage)
            log.warning("run_failed", reason=failure.reason, error=failure.message)
            ending = self._end(spec, State.RUN_STATE_FAILED, timings, failure)
        else:
            ending = self._end(spec, State.RUN_STATE_SUCCEEDED, timings, None, bundle, artifact_id)
        await ending
        log.info(
            "run_ended",
            state=stage_pb2.RunState.Name(self._book.get(spec.run_id).run.state),
            duration_s=round(time.monotonic() - began, 3),
        )

    async def _make(
        self, order: Order, watch: Watch, bundle_id: str, timings: dict[str, float]
    ) -> transfer_pb2.Bundle:
        began = time.monotonic()
        pull = asyncio.ensure_future(self._sources.fetch(order, watch))
        self._pulls[order.spec.run_id] = pull
        async with await pull as source:
            self._pulls.pop(order.spec.run_id)
            watch.raise_if_cancelled()
            if order.source is not None:
                timings["pull"] = time.monotonic() - began
            output = self._store.draft()
            try:
                timings.update(await asyncio.to_thread(order.work, source.path, output, watch))
                watch.raise_if_cancelled()
                began = time.monotonic()
                bundle = await asyncio.to_thread(
                    self._store.adopt,
                    output,
                    order.output_kind,
                    clip=order.clip,
                    bundle_id=bundle_id,
                )
            finally:
                output.unlink(missing_ok=True)
            timings["commit"] = time.monotonic() - began
        return bundle

    async def _hand_over(
        self,
        order: Order,
        watch: Watch,
        bundle: transfer_pb2.Bundle,
        timings: dict[str, float],
    ) -> str:
        if self._deliver is None or not order.spec.lease_token:
            return ""
        began = time.monotonic()

        def report(done: int, total: int) -> None:
            watch.report("upload", done, total)

        output = Output(order, bundle, self._store.path(bundle.bundle_id), timings, report)
        delivery = asyncio.ensure_future(self._deliver(output))
        self._pulls[order.spec.run_id] = delivery
        artifact_id = await delivery
        timings["upload"] = time.monotonic() - began
        return artifact_id

    async def _end(
        self,
        spec: stage_pb2.RunSpec,
        state: stage_pb2.RunState,
        timings: dict[str, float],
        failure: stage_pb2.Failure | None = None,
        bundle: transfer_pb2.Bundle | None = None,
        artifact_id: str = "",
    ) -> None:
        while True:
            # On a full disk the run keeps its slot: nobody may be told what is not written.
            try:
                await self._book.end(
                    spec.run_id,
                    state,
                    timings=timings,
                    failure=failure,
                    output=bundle,
                    artifact_id=artifact_id,
                )
            except MeshError as error:
                log.error("journal_not_written", error=error.message)
                await asyncio.sleep(_RETRY_JOURNAL_S)
            else:
                return
