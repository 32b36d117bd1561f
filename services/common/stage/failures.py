"""What went wrong in a run, as a Failure: a reason of the table and the worker's own words."""

import traceback

from reelmesh.v1 import stage_pb2
from services.common.files import is_disk_full
from services.common.rpc.errors import TABLE, MeshError, Reason
from services.common.work import EngineError

_LIMIT = 4000  # characters of a failure's message
# What resuming can save: the work before it is still there.
_RESUMABLE = {
    Reason.INTERRUPTED,
    Reason.WORKER_DIED,
    Reason.OUT_OF_MEMORY,
    Reason.DISK_FULL,
    # The input was not there: the registry may have a copy, or has it made again.
    Reason.UNREACHABLE,
    Reason.DEADLINE,
    Reason.STREAM_STALLED,
    Reason.STREAM_INCOMPLETE,
    Reason.BUNDLE_NOT_FOUND,
}


def make_failure(reason: Reason, message: str, stage: stage_pb2.Stage) -> stage_pb2.Failure:
    """A Failure of this reason; of a message that is too long the end is kept."""
    if len(message) > _LIMIT:
        message = "…" + message[-(_LIMIT - 1) :]
    return stage_pb2.Failure(
        reason=reason,
        message=message,
        stage=stage,
        retryable=TABLE[reason].retryable,
        resumable=reason in _RESUMABLE,
    )


def describe_failure(error: Exception, stage: stage_pb2.Stage) -> stage_pb2.Failure:
    """The Failure that an exception out of a run's work means."""
    if isinstance(error, MeshError):
        return make_failure(error.reason, error.message, stage)
    if isinstance(error, EngineError):
        if error.reason in TABLE:
            return make_failure(Reason(error.reason), error.message, stage)
        return make_failure(Reason.ENGINE_FAILED, str(error), stage)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return make_failure(Reason.OUT_OF_MEMORY, str(error) or "out of memory", stage)
    if is_disk_full(error):
        return make_failure(Reason.DISK_FULL, str(error), stage)
    lines = "".join(traceback.format_exception(error))
    return make_failure(Reason.ENGINE_FAILED, lines, stage)
