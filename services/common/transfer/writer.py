"""Pushes a file to another service's TransferService, without sending anything twice."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelmesh.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.chunks import fill_chunk, read_block
from services.common.transfer.digest import digest_file
from services.common.transfer.patience import Patience
from services.common.transfer.pump import IDLE_S
from services.common.transfer.threads import in_thread
from services.common.transfer.upstream import Upstream
from services.common.transfer.verification import verify_file

_UNARY_S = 30.0


@dataclass(frozen=True)
class Pushed:
    """A finished upload and the bundle that it became at the peer."""

    upload_id: str
    bundle: transfer_pb2.Bundle


async def push(
    peer: Peer,
    path: Path,
    manifest: transfer_pb2.Manifest,
    lease: transfer_pb2.Lease | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    patience: Patience | None = None,
    idle_s: float = IDLE_S,
) -> Pushed:
    """Make the file at `path` a bundle of `peer`'s and return it, with its read token.

    The file is verified first: one with wrong tensors or non-finite values is not sent. A broken
    stream is resumed from what the peer has synced. Raises what the peer raises.
    """
    pushing = _Push(peer, path, manifest, lease or transfer_pb2.Lease(), progress, idle_s)
    budget = (patience or Patience()).budget()
    try:
        await in_thread(pushing.open)
        while True:
            try:
                bundle = await pushing.attempt()
                return Pushed(pushing.upload_id, bundle)
            except MeshError as error:
                await budget.pause(error, pushing.persisted_bytes)
    finally:
        pushing.close()


@dataclass
class _Push:
    peer: Peer
    path: Path
    manifest: transfer_pb2.Manifest
    lease: transfer_pb2.Lease
    progress: Callable[[int, int], None] | None
    idle_s: float
    descriptor: int = -1
    size_bytes: int = 0
    sha256: bytes = b""
    upload_id: str = ""
    persisted_bytes: int = 0

    def open(self) -> None:
        """Open the file and verify it."""
        self.descriptor = os.open(self.path, os.O_RDONLY)
        self.size_bytes = os.fstat(self.descriptor).st_size
        digest = digest_file(self.descriptor, self.size_bytes)
        self.sha256 = digest.sha256()
        verify_file(self.descriptor, self.manifest, self.size_bytes, digest, self.sha256)

    def close(self) -> None:
        """Close the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)

    async def attempt(self) -> transfer_pb2.Bundle:
        """One stream, from what is persisted; or the bundle, if only its answer was lost."""
        stub = transfer_pb2_grpc.TransferServiceStub(self.peer.channel)
        async with calling():
            done = await self._settle(stub)
            if done is not None:
                return done
            call = Upstream(stub.Write(metadata=self.peer.metadata()))
            try:
                await self._send(call)
                answer = await call.answer()
            finally:
                call.cancel()
        bundle: transfer_pb2.Bundle = answer.bundle
        return bundle

    async def _settle(self, stub: Any) -> transfer_pb2.Bundle | None:
        """Open the upload, or ask how far it came."""
        metadata = self.peer.metadata()
        if not self.upload_id:
            start = transfer_pb2.StartUploadRequest(
                manifest=self.manifest, size_bytes=self.size_bytes, lease=self.lease
            )
            answer = await stub.StartUpload(start, metadata=metadata, timeout=_UNARY_S)
            self.upload_id = answer.upload_id
            return None
        ask = transfer_pb2.GetUploadRequest(upload_id=self.upload_id)
        state = await stub.GetUpload(ask, metadata=metadata, timeout=_UNARY_S)
        if state.HasField("bundle"):
            bundle: transfer_pb2.Bundle = state.bundle
            return bundle
        self.persisted_bytes = state.persisted_size_bytes
        return None

    async def _send(self, call: Upstream) -> None:
        """Write what the peer lacks, or up to where the call ends."""
        if not await call.write(self._header(), self.idle_s):
            return
        offset = self.persisted_bytes
        while offset < self.size_bytes:
            message, end = await in_thread(self._chunk, offset)
            if not await call.write(message, self.idle_s):
                return
            offset = end
            if self.progress is not None:
                self.progress(offset, self.size_bytes)
        await call.write(self._finish(), self.idle_s)

    def _header(self) -> transfer_pb2.WriteRequest:
        header = transfer_pb2.WriteHeader(upload_id=self.upload_id, lease=self.lease)
        return transfer_pb2.WriteRequest(header=header)

    def _chunk(self, offset: int) -> tuple[transfer_pb2.WriteRequest, int]:
        data = read_block(self.descriptor, offset, self.size_bytes)
        if not data:
            raise MeshError(Reason.SIZE_MISMATCH, "the file became shorter while it was sent")
        message = transfer_pb2.WriteRequest()
        fill_chunk(message.chunk, offset, data)
        return message, offset + len(data)

    def _finish(self) -> transfer_pb2.WriteRequest:
        finish = transfer_pb2.Finish(size_bytes=self.size_bytes, sha256=self.sha256)
        return transfer_pb2.WriteRequest(finish=finish)
