"""What an operator asks of a registry, with an admin's key: owners, keys, instances, verdicts."""

from collections.abc import Sequence

from reelmesh.v1 import (
    instances_pb2,
    instances_pb2_grpc,
    owners_pb2,
    owners_pb2_grpc,
    stage_pb2,
)
from services.cli.calls import call
from services.common.rpc.channel import Peer


class Operator:
    """The operators' services of a registry. Every method raises MeshError."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._owners = owners_pb2_grpc.OwnerServiceStub(peer.channel)
        self._instances = instances_pb2_grpc.InstanceServiceStub(peer.channel)

    async def list_instances(self) -> Sequence[stage_pb2.Instance]:
        """All instances by name."""
        request = instances_pb2.ListInstancesRequest()
        answer: instances_pb2.ListInstancesResponse = await call(
            self._peer, self._instances.ListInstances, request
        )
        return answer.instances

    async def drain(self, instance_id: str) -> stage_pb2.Instance:
        """No new runs for an instance; it exits when nothing needs it."""
        request = instances_pb2.DrainRequest(instance_id=instance_id)
        answer: instances_pb2.DrainResponse = await call(self._peer, self._instances.Drain, request)
        return answer.instance

    async def remove(self, instance_id: str, note: str = "") -> stage_pb2.Instance:
        """Confirm that an instance's host is off: its runs become LOST."""
        request = instances_pb2.RemoveRequest(instance_id=instance_id, note=note)
        answer: instances_pb2.RemoveResponse = await call(
            self._peer, self._instances.Remove, request
        )
        return answer.instance

    async def resolve_run(
        self, run_id: str, verdict: instances_pb2.Verdict, note: str = ""
    ) -> instances_pb2.ResolveRunResponse:
        """Rule on a run that is UNKNOWN."""
        request = instances_pb2.ResolveRunRequest(run_id=run_id, verdict=verdict, note=note)
        answer: instances_pb2.ResolveRunResponse = await call(
            self._peer, self._instances.ResolveRun, request
        )
        return answer

    async def list_owners(self) -> Sequence[owners_pb2.Owner]:
        """All owners by name."""
        owners: list[owners_pb2.Owner] = []
        token = ""
        while True:
            request = owners_pb2.ListOwnersRequest(page_size=200, page_token=token)
            answer: owners_pb2.ListOwnersResponse = await call(
                self._peer, self._owners.ListOwners, request
            )
            owners.extend(answer.owners)
            token = answer.next_page_token
            if not token:
                return owners

    async def create_owner(self, name: str, *, admin: bool = False) -> owners_pb2.Owner:
        """Make an owner."""
        request = owners_pb2.CreateOwnerRequest(name=name, admin=admin)
        answer: owners_pb2.CreateOwnerResponse = await call(
            self._peer, self._owners.CreateOwner, request
        )
        return answer.owner

    async def set_quota(self, owner_id: str, quota: owners_pb2.Quota) -> owners_pb2.Owner:
        """Set an owner's limits."""
        request = owners_pb2.SetQuotaRequest(owner_id=owner_id, quota=quota)
        answer: owners_pb2.SetQuotaResponse = await call(self._peer, self._owners.SetQuota, request)
        return answer.owner

    async def list_keys(self, owner_id: str) -> Sequence[owners_pb2.Key]:
        """An owner's keys without their secrets."""
        request = owners_pb2.ListKeysRequest(owner_id=owner_id)
        answer: owners_pb2.ListKeysResponse = await call(self._peer, self._owners.ListKeys, request)
        return answer.keys

    async def create_key(self, owner_id: str, label: str = "") -> owners_pb2.CreateKeyResponse:
        """Make a key; its secret is in the answer, once."""
        request = owners_pb2.CreateKeyRequest(owner_id=owner_id, label=label)
        answer: owners_pb2.CreateKeyResponse = await call(
            self._peer, self._owners.CreateKey, request
        )
        return answer

    async def revoke_key(self, key_id: str) -> None:
        """End a key."""
        request = owners_pb2.RevokeKeyRequest(key_id=key_id)
        await call(self._peer, self._owners.RevokeKey, request)
