"""One stage as a process: settle the journal, listen, load the model, register, stop cleanly."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from reelmesh.v1 import stage_pb2, stage_pb2_grpc, transfer_pb2_grpc
from services.common import telemetry
from services.common.checkpoint.files import CheckpointError
from services.common.config import StageSettings
from services.common.ids import is_instance_id, new_id
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError
from services.common.rpc.identity import Role
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import load_tokens
from services.common.stage.book import Book
from services.common.stage.capabilities import publish
from services.common.stage.journal import Journal, JournalHeld
from services.common.stage.order import Deliver
from services.common.stage.registration import Registration
from services.common.stage.runs import Runs
from services.common.stage.servicer import Desk, RunServicer
from services.common.stage.source import Sources
from services.common.transfer.gate import StageGate
from services.common.transfer.servicer import TransferServicer
from services.common.transfer.store import BundleStore, utc_now
from services.common.version import version
from services.common.work import EngineError

log = structlog.get_logger()

_GRACE_S = 10.0
_SWEEP_S = 60.0


@dataclass(frozen=True)
class Part:
    """What makes a stage this stage."""

    stage: stage_pb2.Stage
    # Loads the model; blocks; runs in a thread after the port is open.
    load: Callable[[], None]
    # The stage's own servicers.
    mounts: Callable[[Desk], Sequence[Mount]]
    # Ends what `load` started.
    close: Callable[[], None] = lambda: None
    # Takes a finished output to the registry; the registry fetches it otherwise.
    deliver: Callable[[Peer], Deliver] | None = None
    layout: str = ""
    # The modes that it does.
    modes: Sequence[str] = ("t2va",)
    # Deletes what the stage itself keeps on disk and needs no more; called on the loop, on a timer.
    sweep: Callable[[Desk], None] = lambda _desk: None
    # Has its argument called, from any thread, when the stage can work (True), when it cannot for
    # now (False), or when it never will again (None), which ends the process.
    follow: Callable[[Callable[[bool | None], None]], None] = lambda _tell: None


def serve(settings: StageSettings, part: Part) -> None:
    """Run the stage until it is told to stop. Exits with 2 on a wrong configuration."""
    if not is_instance_id(settings.instance_id):
        sys.exit(f"instance id {settings.instance_id!r}: use a-z, 0-9, '.', '_' and '-'")
    telemetry.configure(settings.table, settings.instance_id, settings.log_level)
    try:
        code = asyncio.run(_serve(settings, part))
    except (JournalHeld, CheckpointError, EngineError, OSError) as error:
        log.error("cannot_start", error=str(error))
        code = 2
    finally:
        part.close()
    sys.exit(code)


async def _serve(settings: StageSettings, part: Part) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tokens = load_tokens(settings.tokens_path)
    token = tokens.of(Role.STAGE)
    journal = Journal(settings.folder)
    store = BundleStore(settings.folder, upload_ttl_s=settings.upload_expiry_s)
    book = Book(journal, settings.instance_id)
    await asyncio.to_thread(_open, journal, store, book)
    capabilities = await asyncio.to_thread(
        lambda: publish(settings, part.stage, modes=part.modes, layout=part.layout)
    )
    instance = stage_pb2.Instance(
        instance_id=settings.instance_id,
        boot_id=new_id("boot"),
        journal_id=journal.journal_id,
        capabilities=capabilities,
        version=version(),
        pool=settings.pool,
    )
    registry = Peer(settings.registry, token) if settings.registry else None
    sources = Sources(store, settings.instance_id, token, settings.peers)
    deliver = part.deliver(registry) if part.deliver and registry else None
    runs = Runs(book, store, sources, deliver)
    desk = Desk(book, runs, sources, store, instance, lambda: journal.journal_id)
    transfer = TransferServicer(store, StageGate(store), idle_s=settings.stream_idle_s)
    mounts = [
        Mount(
            "reelmesh.v1.TransferService",
            transfer_pb2_grpc.add_TransferServiceServicer_to_server,
            transfer,
        ),
        Mount(
            "reelmesh.v1.RunService",
            stage_pb2_grpc.add_RunServiceServicer_to_server,
            RunServicer(desk),
        ),
        *part.mounts(desk),
    ]
    server = Server(settings.listen, mounts, tokens.authenticate)
    await server.start()
    host = settings.listen.rsplit(":", 1)[0]
    instance.endpoint = settings.advertise or f"{host}:{server.port}"
    log.info("listening", endpoint=instance.endpoint, journal_id=journal.journal_id)
    try:
        code = await _work(part, desk, server, registry, stop)
    finally:
        desk.ready = False
        await server.set_serving(False)
        await runs.stop(_GRACE_S)
        await server.stop(1.0)
        if registry:
            await registry.close()
        journal.close()
        log.info("stopped")
    return code


async def _work(
    part: Part, desk: Desk, server: Server, registry: Peer | None, stop: asyncio.Event
) -> int:
    """Load, serve, and wait for the order to stop, the end of a drain (0) or a newer start (3).

    4: the engine cannot work and never will again.
    """
    stopping = asyncio.create_task(stop.wait())
    loading = asyncio.create_task(asyncio.to_thread(part.load))
    await asyncio.wait({stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        return 0
    loading.result()
    desk.ready = True
    await server.set_serving(True)
    log.info("serving", endpoint=desk.instance.endpoint)
    broken = asyncio.Event()
    breaking = asyncio.create_task(broken.wait())
    tasks: set[asyncio.Task[object]] = {
        stopping,
        breaking,
        asyncio.create_task(_sweep(part, desk)),
    }
    keeping: asyncio.Task[MeshError | None] | None = None
    draining = False

    async def drain() -> None:
        nonlocal draining
        draining = True
        desk.runs.drain()
        await server.set_serving(False)

    async def turn(able: bool) -> None:
        desk.ready = able
        await server.set_serving(able and not draining)

    loop = asyncio.get_running_loop()

    def tell(able: bool | None) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody is served any more
            if able is None:
                loop.call_soon_threadsafe(broken.set)
            else:
                asyncio.run_coroutine_threadsafe(turn(able), loop)

    part.follow(tell)
    if registry:
        registration = Registration(registry, desk.instance, desk.book, drain)
        keeping = asyncio.create_task(registration.keep(lambda: desk.ready and not draining))
        tasks.add(keeping)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    if breaking.done() and not stop.is_set():
        return 4
    if keeping and keeping.done() and not stop.is_set() and (error := keeping.result()):
        log.error("superseded", error=error.message)
        return 3
    return 0


async def _sweep(part: Part, desk: Desk) -> None:
    while True:
        part.sweep(desk)
        await asyncio.sleep(_SWEEP_S)
        await asyncio.to_thread(desk.store.sweep, utc_now())


def _open(journal: Journal, store: BundleStore, book: Book) -> None:
    records = journal.open()  # first: it holds the lock that makes this folder ours alone
    store.open()
    book.settle(records, lambda bundle_id: store.find(bundle_id) is not None)
