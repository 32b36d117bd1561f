"""MeshService, and the TransferService of the mesh listener: decode, call, encode."""

from collections.abc import AsyncIterator
from datetime import timedelta

from reelmesh.v1 import mesh_pb2, mesh_pb2_grpc, stage_pb2, transfer_pb2
from services.common import telemetry
from services.common.ids import is_id, is_instance_id
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role, require_role
from services.common.rpc.interceptors import Context
from services.common.transfer.sender import send_bundle
from services.common.transfer.servicer import TransferServicer
from services.common.transfer.store import BundleStore
from services.registry.database import Database
from services.registry.gate import RegistryGate, require_lease
from services.registry.lifecycle import Stage
from services.registry.messages import artifact_message, stage_of
from services.registry.publishing import Publisher
from services.registry.records.instances import register, renew
from services.registry.shelf import Shelf


class MeshServicer(mesh_pb2_grpc.MeshServiceServicer):
    """For the stage role."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        heartbeat_s: float,
        lease_s: float,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._heartbeat_s = heartbeat_s
        self._lease_s = lease_s

    async def Register(
        self, request: mesh_pb2.RegisterRequest, context: Context
    ) -> mesh_pb2.RegisterResponse:
        """One start of a stage's process."""
        require_role(Role.STAGE)
        instance = request.instance
        stage = _check_instance(instance)
        telemetry.bind(stage_instance_id=instance.instance_id)
        generation = await self._database.write(lambda session: register(session, instance, stage))
        answer = mesh_pb2.RegisterResponse(generation=generation)
        answer.heartbeat_interval.FromTimedelta(timedelta(seconds=self._heartbeat_s))
        answer.lease.FromTimedelta(timedelta(seconds=self._lease_s))
        return answer

    async def Heartbeat(
        self, request: mesh_pb2.HeartbeatRequest, context: Context
    ) -> mesh_pb2.HeartbeatResponse:
        """It is alive."""
        require_role(Role.STAGE)
        drain, release = await self._database.write(
            lambda session: renew(
                session,
                request.instance_id,
                request.generation,
                request.boot_id,
                serving=request.serving,
            )
        )
        return mesh_pb2.HeartbeatResponse(drain=drain, release=release)

    async def Publish(
        self, request: mesh_pb2.PublishRequest, context: Context
    ) -> mesh_pb2.PublishResponse:
        """An uploaded MP4 becomes the job's artifact."""
        require_role(Role.STAGE)
        row = await self._publisher.publish_upload(
            request.lease, request.upload_id, request.timings
        )
        return mesh_pb2.PublishResponse(artifact=artifact_message(row))


class InboundServicer(TransferServicer):
    """TransferService for runs that upload here, every upload of one, and that read our copies."""

    def __init__(
        self, store: BundleStore, gate: RegistryGate, shelf: Shelf, *, idle_s: float
    ) -> None:
        super().__init__(store, gate, idle_s=idle_s)
        self._shelf = shelf

    async def StartUpload(
        self, request: transfer_pb2.StartUploadRequest, context: Context
    ) -> transfer_pb2.StartUploadResponse:
        """Open an upload of a run."""
        require_lease(request.lease)
        return await super().StartUpload(request, context)

    async def Read(
        self, request: transfer_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.ReadResponse]:
        """A copy of a stage's output."""
        stored = await self._gate.may_read(request.bundle_id, request.read_token)
        await send_bundle(
            stored,
            self._shelf.path(stored.bundle.bundle_id),
            transfer_pb2.ReadResponse,
            context.write,
            offset=request.offset,
            idle_s=self._idle_s,
        )
        nothing: tuple[transfer_pb2.ReadResponse, ...] = ()
        for message in nothing:  # the interceptor expects a generator
            yield message


def _check_instance(instance: stage_pb2.Instance) -> Stage:
    """The instance's stage; INVALID_FIELD or BAD_ID for what could not be called or matched."""
    if not is_instance_id(instance.instance_id):
        words = "an instance id is lower-case letters, digits, '.', '_' and '-', at most 63"
        raise MeshError(Reason.BAD_ID, words, field="instance.instance_id")
    if not is_id("boot", instance.boot_id):
        raise MeshError(Reason.BAD_ID, "this is no boot id", field="instance.boot_id")
    if not is_id("jrn", instance.journal_id):
        raise MeshError(Reason.BAD_ID, "this is no journal id", field="instance.journal_id")
    if ":" not in instance.endpoint or len(instance.endpoint) > 255:
        words = "say where the instance is called: host:port"
        raise MeshError(Reason.INVALID_FIELD, words, field="instance.endpoint")
    if instance.pool and not is_instance_id(instance.pool):
        words = "a pool is named as an instance is"
        raise MeshError(Reason.INVALID_FIELD, words, field="instance.pool")
    digest = instance.capabilities.checkpoint_digest
    if len(digest) > 64 or "\0" in digest + instance.version:
        words = "a digest has at most 64 characters, and no text holds a NUL"
        raise MeshError(Reason.INVALID_FIELD, words, field="instance.capabilities")
    stage = stage_of(instance.capabilities.stage)
    if stage is None:
        words = "say which stage the instance does"
        raise MeshError(Reason.INVALID_FIELD, words, field="instance.capabilities.stage")
    return stage
