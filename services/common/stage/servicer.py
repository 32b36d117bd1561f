"""RunService, as every stage mounts it, and the checks that every start shares."""

import base64
import binascii
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import Message

from reelmesh.v1 import stage_pb2, stage_pb2_grpc, transfer_pb2
from services.common import telemetry
from services.common.ids import is_id
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role, caller
from services.common.rpc.interceptors import Context
from services.common.stage.book import Book, Entry
from services.common.stage.order import Order, Work, digest_of
from services.common.stage.runs import Runs
from services.common.stage.source import Sources
from services.common.transfer.store import BundleStore

_PAGE_RUNS, _MOST_RUNS = 50, 200


class Desk:
    """What the servicers of one instance share: its book, its runs, and who it is."""

    def __init__(
        self,
        book: Book,
        runs: Runs,
        sources: Sources,
        store: BundleStore,
        instance: stage_pb2.Instance,
        journal_id: Callable[[], str],
    ) -> None:
        self.book = book
        self.runs = runs
        self.sources = sources
        self.store = store
        self.instance = instance
        self.journal_id = journal_id
        self.ready = False

    @property
    def stage(self) -> stage_pb2.Stage:
        """The stage that this instance does."""
        return self.instance.capabilities.stage

    async def start(
        self,
        request: Any,
        work: Work,
        *,
        output_kind: transfer_pb2.BundleKind,
        output_bytes: int,
        source: transfer_pb2.BundleRef | None = None,
        source_kind: transfer_pb2.BundleKind = transfer_pb2.BUNDLE_KIND_UNSPECIFIED,
        source_field: str = "",
    ) -> stage_pb2.Run:
        """Start the run of a start request (it has `run` and `clip`); the run as it is then."""
        spec = request.run
        self._check_spec(spec)
        # A repeat finds its run even when its input is gone or the service is loading.
        entry = self._find_repeat(request)
        if entry is None:
            if not self.ready:
                raise MeshError(Reason.NOT_READY, "the model is still loading", retry_after_s=2)
            if source is not None:
                source = await self.sources.resolve(source, source_field)
            order = Order(
                stage=self.stage,
                spec=spec,
                clip=request.clip,
                digest=digest_of(request),
                source=source,
                source_kind=source_kind,
                output_kind=output_kind,
                output_bytes=output_bytes,
                work=work,
            )
            entry = await self.runs.start(order)
        return self.present(entry)

    def present(self, entry: Entry) -> stage_pb2.Run:
        """The run as the caller may see it: the output's read token for registry and operator."""
        run = stage_pb2.Run()
        run.CopyFrom(entry.run)
        if run.output.bundle_id:
            run.output.instance_id = self.instance.instance_id
            run.output.endpoint = self.instance.endpoint
            if stored := self.store.find(run.output.bundle_id):
                bundle = stored.bundle
                run.output.size_bytes = bundle.size_bytes
                run.output.sha256 = bundle.sha256
                run.output_manifest.CopyFrom(bundle.manifest)
                if caller().role in (Role.REGISTRY, Role.OPERATOR):
                    run.output.read_token = bundle.read_token
        return run

    def check_journal(self, journal_id: str) -> None:
        """STALE_RUN if the caller speaks to another journal than this."""
        if journal_id and journal_id != self.journal_id():
            raise MeshError(Reason.STALE_RUN, "the run is bound to another journal than this one")

    def _check_spec(self, spec: stage_pb2.RunSpec) -> None:
        check_run_id(spec.run_id, "run.run_id")
        telemetry.bind(run_id=spec.run_id, job_id=spec.job_id, owner_id=spec.owner_id)
        self.check_journal(spec.journal_id)
        if spec.generation and spec.generation != self.book.generation:
            raise MeshError(
                Reason.STALE_RUN,
                f"the run is bound to generation {spec.generation}, "
                f"this is generation {self.book.generation}",
            )

    def _find_repeat(self, request: Any) -> Entry | None:
        try:
            entry = self.book.get(request.run.run_id)
        except MeshError:
            return None
        if not entry.digest:
            raise MeshError(Reason.STALE_RUN, "the run was cancelled before it started")
        if entry.digest != digest_of(request):
            raise MeshError(Reason.RUN_ID_REUSED, "another run has this id", field="run.run_id")
        return entry


class RunServicer(stage_pb2_grpc.RunServiceServicer):
    """RunService over a desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def GetRun(
        self, request: stage_pb2.GetRunRequest, context: Context
    ) -> stage_pb2.GetRunResponse:
        """One run."""
        check_run_id(request.run_id, "run_id")
        try:
            entry = self._desk.book.get(request.run_id)
        except MeshError as error:
            # Absence means something only together with the journal that says so.
            error.info["journal_id"] = self._desk.journal_id()
            raise
        return stage_pb2.GetRunResponse(
            run=self._desk.present(entry), journal_id=self._desk.journal_id()
        )

    async def WatchRun(
        self, request: stage_pb2.WatchRunRequest, context: Context
    ) -> AsyncIterator[stage_pb2.WatchRunResponse]:
        """The run at every change."""
        check_run_id(request.run_id, "run_id")
        async for entry in self._desk.book.watch(request.run_id):
            yield stage_pb2.WatchRunResponse(run=self._desk.present(entry))

    async def CancelRun(
        self, request: stage_pb2.CancelRunRequest, context: Context
    ) -> stage_pb2.CancelRunResponse:
        """Ask a run to stop, or bury it."""
        check_run_id(request.run_id, "run_id")
        self._desk.check_journal(request.journal_id)
        entry = await self._desk.runs.cancel(request.run_id, self._desk.stage)
        return stage_pb2.CancelRunResponse(run=self._desk.present(entry))

    async def ListRuns(
        self, request: stage_pb2.ListRunsRequest, context: Context
    ) -> stage_pb2.ListRunsResponse:
        """A page of runs."""
        if request.page_size < 0:
            raise MeshError(Reason.INVALID_FIELD, "page_size cannot be negative", field="page_size")
        size = min(request.page_size or _PAGE_RUNS, _MOST_RUNS)
        runs = self._desk.book.newest()
        if request.page_token:
            last = _run_id_of(request.page_token)
            places = [place for place, run in enumerate(runs) if run.run_id == last]
            if not places:
                raise MeshError(Reason.BAD_PAGE_TOKEN, "no such page", field="page_token")
            runs = runs[places[0] + 1 :]
        page = [self._desk.present(self._desk.book.get(run.run_id)) for run in runs[:size]]
        more = base64.urlsafe_b64encode(page[-1].run_id.encode()).decode() if runs[size:] else ""
        return stage_pb2.ListRunsResponse(runs=page, next_page_token=more)

    async def DescribeInstance(
        self, request: stage_pb2.DescribeInstanceRequest, context: Context
    ) -> stage_pb2.DescribeInstanceResponse:
        """Who this instance is."""
        instance = stage_pb2.Instance()
        instance.CopyFrom(self._desk.instance)
        live = self._desk.book.live_run_ids
        instance.generation = self._desk.book.generation
        instance.busy_slots = len(live)
        instance.run_ids.extend(live)
        return stage_pb2.DescribeInstanceResponse(instance=instance)


def check_run_id(run_id: str, field: str) -> None:
    """BAD_ID unless it has the form of a run id."""
    if not is_id("run", run_id):
        raise MeshError(Reason.BAD_ID, 'a run id is "run_" and 32 hexadecimal digits', field=field)


def _run_id_of(page_token: str) -> str:
    try:
        return base64.urlsafe_b64decode(page_token.encode()).decode()
    except (binascii.Error, ValueError):
        raise MeshError(Reason.BAD_PAGE_TOKEN, "no such page", field="page_token") from None


def check_message(request: Message, field: str, present: bool) -> None:
    """INVALID_FIELD if a part that every start needs is missing."""
    if not present:
        name = type(request).__name__
        raise MeshError(Reason.INVALID_FIELD, f"{name} needs `{field}`", field=field)
