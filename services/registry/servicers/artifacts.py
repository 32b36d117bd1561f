"""ArtifactService: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator

from sqlmodel import Session

from reelmesh.v1 import artifacts_pb2, artifacts_pb2_grpc, transfer_pb2
from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import caller
from services.common.rpc.interceptors import Context
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.sender import send_bundle
from services.registry.database import Database
from services.registry.messages import artifact_message
from services.registry.publishing import Publisher
from services.registry.records import artifacts, pages
from services.registry.schema import ArtifactRow
from services.registry.servicers.refusals import not_yet


class ArtifactServicer(artifacts_pb2_grpc.ArtifactServiceServicer):
    """Artifacts of the caller, who is an owner."""

    def __init__(self, database: Database, publisher: Publisher, idle_s: float) -> None:
        self._database = database
        self._publisher = publisher
        self._idle_s = idle_s

    async def GetArtifact(
        self, request: artifacts_pb2.GetArtifactRequest, context: Context
    ) -> artifacts_pb2.GetArtifactResponse:
        """What an artifact is."""
        row = await self._find(request.artifact_id)
        return artifacts_pb2.GetArtifactResponse(artifact=artifact_message(row))

    async def Download(
        self, request: artifacts_pb2.DownloadRequest, context: Context
    ) -> AsyncIterator[artifacts_pb2.DownloadResponse]:
        """A range of its bytes."""
        row = await self._find(request.artifact_id)
        path = self._publisher.path(row.artifact_id)
        if not await asyncio.to_thread(path.exists):
            words = "the artifact's file is not in the store any more"
            raise MeshError(Reason.BUNDLE_CORRUPT, words)
        bundle = transfer_pb2.Bundle(
            manifest=transfer_pb2.Manifest.FromString(row.manifest),
            size_bytes=row.size_bytes,
            sha256=row.sha256,
        )
        await send_bundle(
            StoredBundle(bundle, artifacts.unpack_sums(row)),
            path,
            artifacts_pb2.DownloadResponse,
            context.write,
            offset=request.offset,
            limit=request.limit,
            idle_s=self._idle_s,
        )
        nothing: tuple[artifacts_pb2.DownloadResponse, ...] = ()
        for message in nothing:  # the interceptor expects a generator
            yield message

    async def ListArtifacts(
        self, request: artifacts_pb2.ListArtifactsRequest, context: Context
    ) -> artifacts_pb2.ListArtifactsResponse:
        """A page of artifacts."""
        owner_id, size = caller().owner_id, pages.page_size(request.page_size)
        scope = f"artifacts {owner_id}"
        after = pages.read_token(request.page_token, scope)

        def read(session: Session) -> artifacts_pb2.ListArtifactsResponse:
            rows = artifacts.list_artifacts(session, owner_id, after, size + 1)
            token = ""
            if len(rows) > size:
                last = rows[size - 1]
                token = pages.make_token(pages.Place(last.create_time, last.artifact_id), scope)
            page = [artifact_message(row) for row in rows[:size]]
            return artifacts_pb2.ListArtifactsResponse(artifacts=page, next_page_token=token)

        return await self._database.read(read)

    async def CreateUpload(
        self, request: artifacts_pb2.CreateUploadRequest, context: Context
    ) -> artifacts_pb2.CreateUploadResponse:
        """Not yet."""
        raise not_yet("CreateUpload", "references are not taken; ask for t2va with a prompt")

    async def DeleteArtifact(
        self, request: artifacts_pb2.DeleteArtifactRequest, context: Context
    ) -> artifacts_pb2.DeleteArtifactResponse:
        """Not yet."""
        raise not_yet("DeleteArtifact", "artifacts are kept; ask the operator to free space")

    async def GrantAccess(
        self, request: artifacts_pb2.GrantAccessRequest, context: Context
    ) -> artifacts_pb2.GrantAccessResponse:
        """Not yet."""
        raise not_yet("GrantAccess", "download the artifact and hand the file on")

    async def RevokeAccess(
        self, request: artifacts_pb2.RevokeAccessRequest, context: Context
    ) -> artifacts_pb2.RevokeAccessResponse:
        """Not yet."""
        raise not_yet("RevokeAccess", "no access can be granted yet, so there is none to revoke")

    async def _find(self, artifact_id: str) -> ArtifactRow:
        owner_id = caller().owner_id
        row = await self._database.read(
            lambda session: artifacts.find_artifact(session, owner_id, artifact_id)
        )
        telemetry.bind(job_id=row.job_id)
        return row
