"""OwnerService: decode, call, encode."""

from sqlmodel import Session

from reelmesh.v1 import owners_pb2, owners_pb2_grpc
from services.common.rpc.identity import require_admin
from services.common.rpc.interceptors import Context
from services.registry.columns import utc_now
from services.registry.database import Database
from services.registry.limits import Limits
from services.registry.messages import key_message, owner_message
from services.registry.records import owners, pages, requests


class OwnerServicer(owners_pb2_grpc.OwnerServiceServicer):
    """For admins."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._limits = limits

    async def CreateOwner(
        self, request: owners_pb2.CreateOwnerRequest, context: Context
    ) -> owners_pb2.CreateOwnerResponse:
        """A new owner."""
        admin_id, request_id = require_admin().owner_id, request.request_id
        requests.check_request_id(request_id)

        def create(session: Session) -> owners_pb2.CreateOwnerResponse:
            owners.lock_owner(session, admin_id)
            answer = owners_pb2.CreateOwnerResponse()
            method = "CreateOwner"
            if requests.find_answer(session, admin_id, method, request_id, request, answer):
                return answer
            owner = owners.create_owner(session, request.name, admin=request.admin)
            answer.owner.CopyFrom(owner_message(owner, self._limits))
            requests.keep_answer(session, admin_id, method, request_id, request, answer)
            return answer

        return await self._database.write(create)

    async def ListOwners(
        self, request: owners_pb2.ListOwnersRequest, context: Context
    ) -> owners_pb2.ListOwnersResponse:
        """A page of owners."""
        require_admin()
        size = pages.page_size(request.page_size)
        after = pages.read_token(request.page_token, "owners")

        def read(session: Session) -> owners_pb2.ListOwnersResponse:
            rows = owners.list_owners(session, after.row_id if after else "", size + 1)
            token = ""
            if len(rows) > size:
                token = pages.make_token(pages.Place(utc_now(), rows[size - 1].name), "owners")
            page = [owner_message(row, self._limits) for row in rows[:size]]
            return owners_pb2.ListOwnersResponse(owners=page, next_page_token=token)

        return await self._database.read(read)

    async def CreateKey(
        self, request: owners_pb2.CreateKeyRequest, context: Context
    ) -> owners_pb2.CreateKeyResponse:
        """A new key; its secret is in this answer and nowhere else."""
        admin_id, request_id = require_admin().owner_id, request.request_id
        requests.check_request_id(request_id)

        def create(session: Session) -> owners_pb2.CreateKeyResponse:
            owners.lock_owner(session, admin_id)
            answer = owners_pb2.CreateKeyResponse()
            method = "CreateKey"
            if requests.find_answer(session, admin_id, method, request_id, request, answer):
                return answer
            key, secret = owners.create_key(session, request.owner_id, request.label)
            answer.key.CopyFrom(key_message(key))
            requests.keep_answer(session, admin_id, method, request_id, request, answer)
            answer.secret = secret
            return answer

        return await self._database.write(create)

    async def ListKeys(
        self, request: owners_pb2.ListKeysRequest, context: Context
    ) -> owners_pb2.ListKeysResponse:
        """An owner's keys."""
        require_admin()
        keys = await self._database.read(
            lambda session: owners.list_keys(session, request.owner_id)
        )
        return owners_pb2.ListKeysResponse(keys=[key_message(key) for key in keys])

    async def RevokeKey(
        self, request: owners_pb2.RevokeKeyRequest, context: Context
    ) -> owners_pb2.RevokeKeyResponse:
        """No call that comes later is let in by the key, whichever connection it comes on."""
        require_admin()
        await self._database.write(lambda session: owners.revoke_key(session, request.key_id))
        return owners_pb2.RevokeKeyResponse()

    async def SetQuota(
        self, request: owners_pb2.SetQuotaRequest, context: Context
    ) -> owners_pb2.SetQuotaResponse:
        """An owner's limits."""
        require_admin()
        quota = request.quota

        def change(session: Session) -> owners_pb2.SetQuotaResponse:
            owner = owners.lock_known_owner(session, request.owner_id)
            owners.set_quota(session, owner, quota.max_running, quota.max_waiting, quota.weight)
            return owners_pb2.SetQuotaResponse(owner=owner_message(owner, self._limits))

        return await self._database.write(change)
