"""The whole registry in one object: what it is made of, and the order it starts and stops in."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from reelmesh.v1 import (
    artifacts_pb2_grpc,
    instances_pb2_grpc,
    jobs_pb2_grpc,
    mesh_pb2_grpc,
    owners_pb2_grpc,
    transfer_pb2_grpc,
)
from services.common.rpc.errors import MeshError
from services.common.rpc.identity import Role
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import load_tokens
from services.common.transfer.store import BundleStore
from services.registry.access import KeyAccess
from services.registry.admission import Admission
from services.registry.backoff import Backoff
from services.registry.bootstrap import bootstrap_local_owner
from services.registry.burials import Burials
from services.registry.config import RegistrySettings
from services.registry.copies import Copies
from services.registry.database import Database, FileLock, is_sqlite, make_engine
from services.registry.dispatcher import Dispatcher
from services.registry.follower import Follower
from services.registry.following import Following
from services.registry.gate import RegistryGate
from services.registry.housekeeping import Housekeeping
from services.registry.leases import Leases
from services.registry.migration import require_schema
from services.registry.notices import Notices
from services.registry.peers import Peers
from services.registry.postgres import connect_arguments
from services.registry.publishing import Publisher
from services.registry.receipts import ReceiptFiles
from services.registry.records.claims import Rules
from services.registry.records.events import QUEUES
from services.registry.replicas import Replicas
from services.registry.roster import Roster
from services.registry.servicers.artifacts import ArtifactServicer
from services.registry.servicers.instances import InstanceServicer
from services.registry.servicers.jobs import JobServicer
from services.registry.servicers.mesh import InboundServicer, MeshServicer
from services.registry.servicers.owners import OwnerServicer
from services.registry.shelf import Shelf
from services.registry.sightings import Sightings
from services.registry.signals import Signals
from services.registry.stages import StageCalls
from services.registry.starter import Starter
from services.registry.submitting import Submitting
from services.registry.watching import Watches

log = structlog.get_logger()

_PAUSE_S = 1.0


class Registry:
    """Call `start` once, then `stop` once."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = FileLock(settings.url)
        self.signals = Signals()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve.

        Raises DatabaseHeld, DatabaseAway, SchemaMismatch, OSError with words for a person.
        """
        settings = self._settings
        self._lock.acquire()
        await asyncio.to_thread(require_schema, settings.url)
        alone = is_sqlite(settings.url)
        replica_id = settings.replica_id
        notices = None
        if not alone:
            notices = Notices(connect_arguments(settings.url), replica_id, self.signals)
        self.database = Database(
            make_engine(settings.url), notices.notify if notices else self.signals.notify
        )
        folder = settings.artifact_folder
        # Uploads and drafts are one process's own.
        incoming = folder / "incoming" if alone else folder / "incoming" / replica_id
        store = BundleStore(incoming, upload_ttl_s=settings.upload_expiry_s)
        await asyncio.to_thread(store.open)
        tokens = load_tokens(settings.tokens_path)

        self._peers = Peers(tokens.of(Role.REGISTRY), lambda: self.signals.notify((QUEUES,)))
        self._roster = Roster(self.database, self.signals)
        calls = StageCalls(settings.call_timeout_s)
        shelf = Shelf(folder / "copies")
        await asyncio.to_thread(shelf.open)
        receipts = ReceiptFiles(self.database, folder)
        publisher = Publisher(self.database, store, folder, receipts)
        leases = Leases(self.database, Sightings(settings.lease_s))
        self._replicas = Replicas(self.database, replica_id, Sightings(settings.lease_s))
        backoff = Backoff(settings.refusal_backoff_s)
        starter = Starter(
            self.database,
            self._peers,
            calls,
            backoff,
            lambda: settings.advertise or self.mesh_address,
        )
        self.follower = Follower(
            self.database,
            self.signals,
            self._peers,
            calls,
            publisher,
            store,
            backoff,
            settings.ask_interval_s,
            starter,
        )
        following = Following(self.database, self.signals, self.follower, replica_id)
        dispatcher = Dispatcher(
            self.database,
            self.signals,
            self._roster,
            self._peers,
            following,
            backoff,
            Rules(settings.encoded_ahead, settings.limits, replica_id, sends=True),
        )
        burials = Burials(self.database, self._peers, calls, self.follower)
        copies = Copies(
            self.database,
            self._peers,
            store,
            shelf,
            replica_id,
            settings.latents_retention_s,
            settings.copies_at_once,
        )
        housekeeping = Housekeeping(
            self.database,
            self._peers,
            calls,
            store,
            folder,
            copies,
            receipts,
            replica_id,
            alone=alone,
            retention_s=settings.latents_retention_s,
            events_s=settings.event_retention_s,
            pause_s=settings.heartbeat_s,
        )
        self.clients = Server(
            settings.client_listen,
            self._client_mounts(calls, publisher),
            KeyAccess(self.database).authenticate,
        )
        self.mesh = Server(
            settings.mesh_listen,
            self._mesh_mounts(publisher, store, shelf),
            tokens.authenticate,
        )
        await housekeeping.remove_strays()
        await self.clients.start()
        await self.mesh.start()
        if settings.bootstrap:
            await bootstrap_local_owner(self.database, settings.key_path, self.client_address)
        await self._replicas.join(alone=alone)
        work_for_ever = [
            leases.run,
            following.run,
            dispatcher.run,
            copies.run,
            burials.run,
            housekeeping.run,
        ]
        if notices is not None:
            work_for_ever += [self._replicas.run, notices.run]
        for work in work_for_ever:
            self._tasks.append(asyncio.create_task(_keep_alive(work)))
        await self.clients.set_serving(True)
        await self.mesh.set_serving(True)

    @property
    def client_address(self) -> str:
        """host:port of the client listener as it is bound."""
        return _address(self._settings.client_listen, self.clients.port)

    @property
    def mesh_address(self) -> str:
        """host:port of the mesh listener as it is bound."""
        return _address(self._settings.mesh_listen, self.mesh.port)

    async def stop(self) -> None:
        """End the watches with a bookmark, let calls end, leave the runs to the next start."""
        self.signals.drain()
        grace_s = self._settings.stop_grace_s
        await asyncio.gather(self.clients.stop(grace_s), self.mesh.stop(grace_s))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._replicas.leave()
        await self._peers.close()
        await asyncio.to_thread(self.database.close)
        self._lock.release()

    def _client_mounts(self, calls: StageCalls, publisher: Publisher) -> list[Mount]:
        settings = self._settings
        watches = Watches(self.database, self.signals, settings.bookmark_s)
        admission = Admission(self._roster, self._peers, calls, settings.limits)
        return [
            Mount(
                "reelmesh.v1.JobService",
                jobs_pb2_grpc.add_JobServiceServicer_to_server,
                JobServicer(
                    self.database,
                    admission,
                    Submitting(self.database, settings.limits),
                    watches,
                    settings.stream_idle_s,
                ),
            ),
            Mount(
                "reelmesh.v1.ArtifactService",
                artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server,
                ArtifactServicer(self.database, publisher, settings.stream_idle_s),
            ),
            Mount(
                "reelmesh.v1.OwnerService",
                owners_pb2_grpc.add_OwnerServiceServicer_to_server,
                OwnerServicer(self.database, settings.limits),
            ),
            Mount(
                "reelmesh.v1.InstanceService",
                instances_pb2_grpc.add_InstanceServiceServicer_to_server,
                InstanceServicer(self.database),
            ),
        ]

    def _mesh_mounts(self, publisher: Publisher, store: BundleStore, shelf: Shelf) -> list[Mount]:
        settings = self._settings
        return [
            Mount(
                "reelmesh.v1.MeshService",
                mesh_pb2_grpc.add_MeshServiceServicer_to_server,
                MeshServicer(self.database, publisher, settings.heartbeat_s, settings.lease_s),
            ),
            Mount(
                "reelmesh.v1.TransferService",
                transfer_pb2_grpc.add_TransferServiceServicer_to_server,
                InboundServicer(
                    store,
                    RegistryGate(self.database, shelf),
                    shelf,
                    idle_s=settings.stream_idle_s,
                ),
            ),
        ]


async def _keep_alive(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work for ever: a full disk or a fault of ours must not end it unseen."""
    while True:
        try:
            await work()
        except MeshError as error:
            log.warning("background_task_interrupted", reason=error.reason, error=error.message)
        except Exception:
            log.exception("background_task_crashed")
        await asyncio.sleep(_PAUSE_S)


def _address(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"
