"""InstanceService: decode, call, encode."""

from reelmesh.v1 import instances_pb2, instances_pb2_grpc
from services.common.rpc.identity import require_admin
from services.common.rpc.interceptors import Context
from services.registry.database import Database
from services.registry.messages import instance_message
from services.registry.records.instances import list_instances
from services.registry.servicers.refusals import not_yet


class InstanceServicer(instances_pb2_grpc.InstanceServiceServicer):
    """For admins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ListInstances(
        self, request: instances_pb2.ListInstancesRequest, context: Context
    ) -> instances_pb2.ListInstancesResponse:
        """All instances by name."""
        require_admin()
        found = await self._database.read(list_instances)
        return instances_pb2.ListInstancesResponse(
            instances=[instance_message(row, run_ids) for row, run_ids in found]
        )

    async def Drain(
        self, request: instances_pb2.DrainRequest, context: Context
    ) -> instances_pb2.DrainResponse:
        """Not yet."""
        require_admin()
        raise not_yet("Drain", "stop the instance when it is idle (see ListInstances)")

    async def Remove(
        self, request: instances_pb2.RemoveRequest, context: Context
    ) -> instances_pb2.RemoveResponse:
        """Not yet."""
        require_admin()
        raise not_yet("Remove", "start the instance again on its journal, which settles its runs")

    async def ResolveRun(
        self, request: instances_pb2.ResolveRunRequest, context: Context
    ) -> instances_pb2.ResolveRunResponse:
        """Not yet."""
        require_admin()
        raise not_yet("ResolveRun", "start the instance again on its journal, or cancel the job")
