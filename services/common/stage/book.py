"""The runs of this instance: what each one is, and that it is written before anyone is told.

All methods run on the event loop; the journal is written in a thread, one change at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.failures import make_failure
from services.common.stage.journal import Journal
from services.common.stage.order import Order, phase_times

State = stage_pb2.RunState
TERMINAL = frozenset(
    {
        State.RUN_STATE_SUCCEEDED,
        State.RUN_STATE_FAILED,
        State.RUN_STATE_CANCELLED,
        State.RUN_STATE_REFUSED,
    }
)
_WATCH_INTERVAL_S = 0.1


@dataclass
class Entry:
    """One run, what asked for it, and the bundle that its output will be."""

    run: stage_pb2.Run
    digest: str = ""  # empty: a tombstone, cancelled before it was ever seen
    bundle_id: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> bool:
        """Whether it holds a slot."""
        return self.run.state not in TERMINAL


class Book:
    """Accepts, changes and finds runs. `settle` first."""

    def __init__(self, journal: Journal, instance_id: str, slots: int = 1) -> None:
        self._journal = journal
        self._instance_id = instance_id
        self._slots = slots
        self._entries: dict[str, Entry] = {}
        self._writing = asyncio.Lock()
        self.generation = 0

    def settle(
        self, records: Mapping[str, Mapping[str, Any]], is_committed: Callable[[str], bool]
    ) -> None:
        """Take over what the journal held, before anyone is served. Blocks.

        A run that was under way has succeeded if its bundle is committed; otherwise it failed
        INTERRUPTED, because the process died under it.
        """
        for run_id, record in records.items():
            run = ParseDict(record["run"], stage_pb2.Run(), ignore_unknown_fields=True)
            entry = Entry(run, str(record["digest"]), str(record["bundle_id"]))
            self._entries[run_id] = entry
            if not entry.live:
                continue
            if entry.bundle_id and is_committed(entry.bundle_id):
                run.state = State.RUN_STATE_SUCCEEDED
                run.output.bundle_id = entry.bundle_id
            else:
                run.state = State.RUN_STATE_FAILED
                words = "the process died during the run; nothing of its output is kept"
                run.failure.CopyFrom(make_failure(Reason.INTERRUPTED, words, run.stage))
            run.end_time.GetCurrentTime()
            self._journal.append(run_id, _record(entry))

    @property
    def live_run_ids(self) -> list[str]:
        """The runs that hold a slot."""
        return [run_id for run_id, entry in self._entries.items() if entry.live]

    def get(self, run_id: str) -> Entry:
        """The run, or RUN_NOT_FOUND."""
        if entry := self._entries.get(run_id):
            return entry
        raise MeshError(Reason.RUN_NOT_FOUND, "this instance's journal has no such run")

    def find(self, run_id: str) -> stage_pb2.Run | None:
        """The run, if the journal has it."""
        entry = self._entries.get(run_id)
        return entry.run if entry else None

    def newest(self) -> list[stage_pb2.Run]:
        """All runs, newest first."""
        return [entry.run for entry in reversed(self._entries.values())]

    async def wait_for_slot(self, limit_s: float) -> None:
        """Until a slot is free, at most `limit_s`."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while len(live := self.live_run_ids) >= self._slots:
            left_s = deadline - asyncio.get_running_loop().time()
            ending = [asyncio.ensure_future(self.get(run_id).changed.wait()) for run_id in live]
            await asyncio.wait(ending, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
            for waiting in ending:
                waiting.cancel()
            if left_s <= 0:
                return

    async def accept(self, order: Order, refusal: Reason | None) -> tuple[Entry, bool]:
        """Take the order into the journal: the entry, and whether it is new and to be worked on.

        A repeated start is the run that is there; without a free slot, or with a `refusal`, the
        run is REFUSED for ever. STALE_RUN if it was cancelled before it came.
        """
        async with self._writing:
            run_id = order.spec.run_id
            if known := self._entries.get(run_id):
                if not known.digest:
                    raise MeshError(Reason.STALE_RUN, "the run was cancelled before it started")
                if known.digest != order.digest:
                    raise MeshError(
                        Reason.RUN_ID_REUSED, "another run has this id", field="run.run_id"
                    )
                return known, False
            if refusal is None and len(self.live_run_ids) >= self._slots:
                refusal = Reason.BUSY
            entry = Entry(self._fresh(run_id, order.stage), order.digest)
            entry.run.job_id = order.spec.job_id
            entry.run.output_manifest.CopyFrom(
                transfer_pb2.Manifest(kind=order.output_kind, clip=order.clip)
            )
            if refusal is not None:
                entry.run.state = State.RUN_STATE_REFUSED
                words = f"the instance cannot take the run now: {refusal}"
                entry.run.failure.CopyFrom(make_failure(refusal, words, order.stage))
                entry.run.end_time.GetCurrentTime()
            await self._write(run_id, entry)
            self._entries[run_id] = entry
            return entry, refusal is None

    async def bury(self, run_id: str, stage: stage_pb2.Stage) -> Entry:
        """Write a tombstone for a run that was never seen; the entry if it was seen after all."""
        async with self._writing:
            if known := self._entries.get(run_id):
                return known
            entry = Entry(self._fresh(run_id, stage))
            entry.run.state = State.RUN_STATE_CANCELLED
            entry.run.end_time.GetCurrentTime()
            await self._write(run_id, entry)
            self._entries[run_id] = entry
            return entry

    async def begin(self, run_id: str, bundle_id: str) -> None:
        """The worker is on it; its output will be this bundle."""
        self.get(run_id).bundle_id = bundle_id

        def begin(run: stage_pb2.Run) -> None:
            run.state = State.RUN_STATE_RUNNING
            run.start_time.GetCurrentTime()

        await self._change(run_id, begin)

    async def end(
        self,
        run_id: str,
        state: stage_pb2.RunState,
        *,
        timings: Mapping[str, float],
        failure: stage_pb2.Failure | None = None,
        output: transfer_pb2.Bundle | None = None,
        artifact_id: str = "",
    ) -> None:
        """Write how it ended. A run that has ended stays as it is."""

        def end(run: stage_pb2.Run) -> None:
            run.state = state
            run.artifact_id = artifact_id
            run.end_time.GetCurrentTime()
            run.timings.extend(phase_times(timings))
            if failure is not None:
                run.failure.CopyFrom(failure)
            if output is not None:
                run.output.bundle_id = output.bundle_id
                run.output.size_bytes = output.size_bytes
                run.output.sha256 = output.sha256
                run.output_manifest.CopyFrom(output.manifest)

        await self._change(run_id, end)

    def report(self, run_id: str, phase: str, done: int, total: int) -> None:
        """Latest progress; not journalled."""
        entry = self.get(run_id)
        if entry.live:
            entry.run.progress.CopyFrom(stage_pb2.Progress(phase=phase, done=done, total=total))
            _wake(entry)

    def request_cancel(self, run_id: str) -> None:
        """Show that a live run is asked to stop."""
        entry = self.get(run_id)
        entry.run.cancel_requested = True
        _wake(entry)

    async def watch(self, run_id: str) -> AsyncIterator[Entry]:
        """The run now and after every change, at most ten times a second, until it has ended."""
        entry = self.get(run_id)
        while True:
            changed = entry.changed
            ended = not entry.live
            yield entry
            if ended:
                return
            await changed.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_INTERVAL_S):
                    await entry.ended.wait()

    def _fresh(self, run_id: str, stage: stage_pb2.Stage) -> stage_pb2.Run:
        run = stage_pb2.Run(
            run_id=run_id,
            stage=stage,
            state=State.RUN_STATE_ACCEPTED,
            instance_id=self._instance_id,
            generation=self.generation,
        )
        run.create_time.GetCurrentTime()
        return run

    async def _change(self, run_id: str, change: Callable[[stage_pb2.Run], None]) -> None:
        async with self._writing:
            entry = self.get(run_id)
            if not entry.live:
                return
            # Nobody may see a state that the journal does not hold yet.
            after = stage_pb2.Run()
            after.CopyFrom(entry.run)
            change(after)
            await self._write(run_id, Entry(after, entry.digest, entry.bundle_id))
            entry.run = after
            _wake(entry)

    async def _write(self, run_id: str, entry: Entry) -> None:
        await asyncio.to_thread(self._journal.append, run_id, _record(entry))


def _record(entry: Entry) -> dict[str, Any]:
    run = stage_pb2.Run()
    run.CopyFrom(entry.run)
    run.ClearField("progress")
    run.output.read_token = ""
    return {"run": MessageToDict(run), "digest": entry.digest, "bundle_id": entry.bundle_id}


def _wake(entry: Entry) -> None:
    if not entry.live:
        entry.ended.set()
    entry.changed.set()
    entry.changed = asyncio.Event()
