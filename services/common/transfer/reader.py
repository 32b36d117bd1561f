"""Pulls a bundle from the instance that has it into a store of our own."""

from collections.abc import Callable

from reelmesh.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.bundles import TEMPORARY
from services.common.transfer.landing import Landing, Stream
from services.common.transfer.patience import Patience
from services.common.transfer.pump import IDLE_S
from services.common.transfer.store import BundleStore
from services.common.transfer.uploads import Upload


async def pull(
    peer: Peer,
    ref: transfer_pb2.BundleRef,
    store: BundleStore,
    *,
    accept: Callable[[transfer_pb2.Manifest], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    patience: Patience | None = None,
    idle_s: float = IDLE_S,
    temporary: bool = False,
) -> transfer_pb2.Bundle:
    """Copy the bundle of `ref` from `peer` into `store`, verified again, and return the copy.

    A `temporary` copy is deleted by its user, and by the store's next `open` if that user died.

    A broken stream is resumed where it broke. `accept` sees the manifest before any byte is stored
    and may raise; `progress` gets (bytes so far, bytes in all). A failure or a cancellation leaves
    nothing behind. Raises what Read raises, SIZE_MISMATCH and DIGEST_MISMATCH (also if the bundle
    is not the one that `ref` describes), BAD_MANIFEST, BAD_TENSORS, NON_FINITE, DISK_FULL.
    """
    stub = transfer_pb2_grpc.TransferServiceStub(peer.channel)

    def open_stream(offset: int) -> Stream:
        request = transfer_pb2.ReadRequest(
            bundle_id=ref.bundle_id, read_token=ref.read_token, offset=offset
        )
        call: Stream = stub.Read(request, metadata=peer.metadata())
        return call

    def begin(header: transfer_pb2.StreamHeader) -> Upload:
        if ref.size_bytes and header.size_bytes != ref.size_bytes:
            raise MeshError(Reason.SIZE_MISMATCH, "the peer's bundle has another size")
        if ref.sha256 and header.sha256 != ref.sha256:
            raise MeshError(Reason.DIGEST_MISMATCH, "the peer's bundle has another SHA-256")
        if accept is not None:
            accept(header.manifest)
        run_id = TEMPORARY if temporary else ""
        return store.start_upload(header.manifest, header.size_bytes, run_id=run_id, durable=False)

    landing = Landing(
        open_stream,
        begin,
        lambda upload: store.attach(upload.upload_id),
        lambda bundle: store.delete(bundle.bundle_id),
        progress,
        idle_s,
    )
    return await landing.run(patience or Patience())
