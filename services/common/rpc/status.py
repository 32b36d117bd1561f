"""MeshError to a google.rpc.Status in the trailers, and back from a failed call."""

from typing import cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.common.rpc.errors import DOMAIN, TABLE, MeshError, Reason

DETAILS_KEY = "grpc-status-details-bin"

# What a failed call without our details means: it never reached our code.
_TRANSPORT = {
    grpc.StatusCode.UNAVAILABLE: Reason.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE,
    grpc.StatusCode.CANCELLED: Reason.CANCELLED,
    grpc.StatusCode.UNIMPLEMENTED: Reason.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
}


def to_status(error: MeshError) -> status_pb2.Status:
    """The error as a Status with ErrorInfo and, where they apply, BadRequest and the others."""
    number = getattr(code_pb2, error.code.name)
    status = status_pb2.Status(code=number, message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.info)
    status.details.add().Pack(info)
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message[:300], reason=error.reason
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        exhausted = error_details_pb2.QuotaFailure.Violation(
            subject=error.reason, description=error.message[:300]
        )
        status.details.add().Pack(error_details_pb2.QuotaFailure(violations=[exhausted]))
    if error.code is grpc.StatusCode.FAILED_PRECONDITION:
        unmet = error_details_pb2.PreconditionFailure.Violation(
            type=error.reason, description=error.message[:300]
        )
        status.details.add().Pack(error_details_pb2.PreconditionFailure(violations=[unmet]))
    return status


def from_call(failed: grpc.aio.AioRpcError) -> MeshError:
    """The MeshError that a failed call carries, or the transport's own as one of ours."""
    # An AioRpcError answers what from_call asks of a Call.
    status = rpc_status.from_call(cast(grpc.Call, failed))
    code = failed.code()
    if status is None:
        words = failed.details() or code.name
        return MeshError(_TRANSPORT.get(code, Reason.INTERNAL), words)
    reason, info = Reason.INTERNAL, {}
    field: str | None = None
    retry_after_s: float | None = None
    for detail in status.details:
        error_info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry_info = error_details_pb2.RetryInfo()
        if detail.Unpack(error_info):
            known = error_info.domain == DOMAIN and error_info.reason in TABLE
            reason = Reason(error_info.reason) if known else Reason.INTERNAL
            info = dict(error_info.metadata)
        elif detail.Unpack(bad_request) and bad_request.field_violations:
            field = bad_request.field_violations[0].field
        elif detail.Unpack(retry_info):
            retry_after_s = retry_info.retry_delay.ToMilliseconds() / 1000
    return MeshError(reason, status.message, field=field, retry_after_s=retry_after_s, info=info)
