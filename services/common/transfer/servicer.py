"""TransferService: the wire's side of a bundle store. Rules are the gate's, bytes the store's."""

from collections.abc import AsyncIterator

from reelmesh.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.interceptors import Context
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.chunks import CHUNK_BYTES
from services.common.transfer.gate import Gate
from services.common.transfer.pump import IDLE_S, next_message, receive
from services.common.transfer.sender import send_bundle
from services.common.transfer.store import BundleStore
from services.common.transfer.threads import attached, in_thread
from services.common.transfer.uploads import Upload, upload_not_found


class TransferServicer(transfer_pb2_grpc.TransferServiceServicer):
    """Mounted by every service. `idle_s` is how long a stream may make no progress."""

    def __init__(self, store: BundleStore, gate: Gate, *, idle_s: float = IDLE_S) -> None:
        self._store = store
        self._gate = gate
        self._idle_s = idle_s

    async def StartUpload(
        self, request: transfer_pb2.StartUploadRequest, context: Context
    ) -> transfer_pb2.StartUploadResponse:
        await self._gate.may_write(request.lease)
        upload = await in_thread(
            self._store.start_upload,
            request.manifest,
            request.size_bytes,
            run_id=request.lease.run_id,
        )
        answer = transfer_pb2.StartUploadResponse(
            upload_id=upload.upload_id, chunk_bytes=CHUNK_BYTES
        )
        answer.expire_time.FromDatetime(self._store.expire_time(upload))
        return answer

    async def Write(
        self, requests: AsyncIterator[transfer_pb2.WriteRequest], context: Context
    ) -> transfer_pb2.WriteResponse:
        first = await next_message(requests, self._idle_s)
        if not first.HasField("header"):
            raise MeshError(Reason.BAD_STREAM, "begin the stream with a header")
        header = first.header
        await self._gate.may_write(header.lease)
        # Before attaching: a stranger's stream must not fence the run's own.
        if self._store.find_upload(header.upload_id).run_id != header.lease.run_id:
            raise upload_not_found()
        async with attached(lambda: self._store.attach(header.upload_id)) as sink:
            await receive(requests, sink, self._idle_s)
            bundle = await in_thread(sink.finish)
        return transfer_pb2.WriteResponse(bundle=bundle)

    async def GetUpload(
        self, request: transfer_pb2.GetUploadRequest, context: Context
    ) -> transfer_pb2.GetUploadResponse:
        await self._gate.may_write(transfer_pb2.Lease())
        found = self._store.find_upload(request.upload_id)
        if isinstance(found, Upload):
            return transfer_pb2.GetUploadResponse(persisted_size_bytes=found.persisted_bytes)
        return transfer_pb2.GetUploadResponse(bundle=found.bundle)

    async def Read(
        self, request: transfer_pb2.ReadRequest, context: Context
    ) -> AsyncIterator[transfer_pb2.ReadResponse]:
        stored = await self._gate.may_read(request.bundle_id, request.read_token)
        await send_bundle(
            stored,
            self._store.path(stored.bundle.bundle_id),
            transfer_pb2.ReadResponse,
            context.write,  # not `yield`: a write can be given a time limit
            offset=request.offset,
            idle_s=self._idle_s,
        )
        nothing: tuple[transfer_pb2.ReadResponse, ...] = ()
        for message in nothing:  # the interceptor expects a generator
            yield message

    async def Stat(
        self, request: transfer_pb2.StatRequest, context: Context
    ) -> transfer_pb2.StatResponse:
        stored = await self._gate.may_read(request.bundle_id, request.read_token)
        return transfer_pb2.StatResponse(bundle=stored.public())

    async def Delete(
        self, request: transfer_pb2.DeleteRequest, context: Context
    ) -> transfer_pb2.DeleteResponse:
        stored: StoredBundle | None = await self._gate.may_delete(
            request.bundle_id, request.read_token
        )
        if stored is not None:
            await in_thread(self._store.delete, stored.bundle.bundle_id)
        return transfer_pb2.DeleteResponse()
