"""InstanceService: decode, call, encode."""

from functools import partial

from sqlmodel import Session

from reelmesh.v1 import instances_pb2, instances_pb2_grpc, stage_pb2
from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import require_admin
from services.common.rpc.interceptors import Context
from services.registry.database import Database
from services.registry.messages import instance_message, run_state_name
from services.registry.records.instances import held_runs, list_instances
from services.registry.records.rulings import (
    Verdict,
    check_note,
    remove_instance,
    request_drain,
    resolve_run,
)
from services.registry.schema import InstanceRow


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
        """No new runs for an instance."""
        change = partial(
            request_drain, admin_id=require_admin().owner_id, instance_id=request.instance_id
        )
        answer = await self._database.write(lambda session: _describe(session, change(session)))
        telemetry.bind(stage_instance_id=answer.instance_id)
        return instances_pb2.DrainResponse(instance=answer)

    async def Remove(
        self, request: instances_pb2.RemoveRequest, context: Context
    ) -> instances_pb2.RemoveResponse:
        """An instance whose host is off is GONE."""
        change = partial(
            remove_instance,
            admin_id=require_admin().owner_id,
            instance_id=request.instance_id,
            note=request.note,
        )
        check_note(request.note)
        answer = await self._database.write(lambda session: _describe(session, change(session)))
        telemetry.bind(stage_instance_id=answer.instance_id)
        return instances_pb2.RemoveResponse(instance=answer)

    async def ResolveRun(
        self, request: instances_pb2.ResolveRunRequest, context: Context
    ) -> instances_pb2.ResolveRunResponse:
        """A verdict on a run in doubt."""
        change = partial(
            resolve_run,
            admin_id=require_admin().owner_id,
            run_id=request.run_id,
            verdict=_verdict(request.verdict),
            note=request.note,
        )
        check_note(request.note)
        run = await self._database.write(change)
        telemetry.bind(run_id=run.run_id, job_id=run.job_id)
        return instances_pb2.ResolveRunResponse(job_id=run.job_id, state=run_state_name(run.state))


def _describe(session: Session, instance: InstanceRow) -> stage_pb2.Instance:
    return instance_message(instance, held_runs(session, instance.instance_id))


def _verdict(value: instances_pb2.Verdict) -> Verdict:
    try:
        return Verdict(instances_pb2.Verdict.Name(value).removeprefix("VERDICT_"))
    except ValueError as error:
        words = "say what you know of the run: NEVER_RAN, FAILED or KEEP_WAITING"
        raise MeshError(Reason.INVALID_FIELD, words, field="verdict") from error
