"""Every error that reelmesh tells a caller: one class and one table.

The table is the only place where a reason meets a gRPC code; `docs/errors.md` is made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import grpc

DOMAIN = "reelmesh"
_MESSAGE_LIMIT = 1500  # characters; trailers must stay under 4 KiB


class Reason(StrEnum):
    """What went wrong, in one word. The word is part of the contract."""

    # what a caller sent
    INVALID_FIELD = "INVALID_FIELD"
    BAD_ID = "BAD_ID"
    BAD_PAGE_TOKEN = "BAD_PAGE_TOKEN"
    PROMPT_EMPTY = "PROMPT_EMPTY"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    UNSUPPORTED_MODE = "UNSUPPORTED_MODE"
    FRAMES_OUT_OF_RANGE = "FRAMES_OUT_OF_RANGE"
    CANVAS_OFF_GRID = "CANVAS_OFF_GRID"
    CANVAS_OUT_OF_RANGE = "CANVAS_OUT_OF_RANGE"
    FPS_UNSUPPORTED = "FPS_UNSUPPORTED"
    EVALUATIONS_OUT_OF_RANGE = "EVALUATIONS_OUT_OF_RANGE"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    RUN_ID_REUSED = "RUN_ID_REUSED"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    # who a caller is
    UNAUTHENTICATED = "UNAUTHENTICATED"
    ROLE_FORBIDDEN = "ROLE_FORBIDDEN"
    NOT_ADMIN = "NOT_ADMIN"
    # what is not there
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    ARTIFACT_NOT_FOUND = "ARTIFACT_NOT_FOUND"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    BUNDLE_NOT_FOUND = "BUNDLE_NOT_FOUND"
    UPLOAD_NOT_FOUND = "UPLOAD_NOT_FOUND"
    OWNER_NOT_FOUND = "OWNER_NOT_FOUND"
    INSTANCE_NOT_FOUND = "INSTANCE_NOT_FOUND"
    KEY_NOT_FOUND = "KEY_NOT_FOUND"
    OWNER_EXISTS = "OWNER_EXISTS"
    # transfer
    BAD_MANIFEST = "BAD_MANIFEST"
    BAD_TENSORS = "BAD_TENSORS"
    NON_FINITE = "NON_FINITE"
    SIZE_MISMATCH = "SIZE_MISMATCH"
    DIGEST_MISMATCH = "DIGEST_MISMATCH"
    BAD_STREAM = "BAD_STREAM"
    CHUNK_TOO_LARGE = "CHUNK_TOO_LARGE"
    CHUNK_CHECKSUM = "CHUNK_CHECKSUM"
    CHUNK_SEQUENCE = "CHUNK_SEQUENCE"
    UPLOAD_GAP = "UPLOAD_GAP"
    WRITER_SUPERSEDED = "WRITER_SUPERSEDED"
    STREAM_STALLED = "STREAM_STALLED"
    STREAM_INCOMPLETE = "STREAM_INCOMPLETE"
    BAD_RANGE = "BAD_RANGE"
    DISK_FULL = "DISK_FULL"
    BUNDLE_CORRUPT = "BUNDLE_CORRUPT"
    # life cycle
    STALE_RUN = "STALE_RUN"
    STALE_GENERATION = "STALE_GENERATION"
    INSTANCE_HELD = "INSTANCE_HELD"
    JOB_ENDED = "JOB_ENDED"
    JOB_NOT_ENDED = "JOB_NOT_ENDED"
    NOT_RESUMABLE = "NOT_RESUMABLE"
    RUN_NOT_IN_DOUBT = "RUN_NOT_IN_DOUBT"
    INSTANCE_ALIVE = "INSTANCE_ALIVE"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    QUEUE_FULL = "QUEUE_FULL"
    UNKNOWN_POOL = "UNKNOWN_POOL"
    NO_INSTANCE_FITS = "NO_INSTANCE_FITS"
    BUSY = "BUSY"
    DRAINING = "DRAINING"
    NOT_READY = "NOT_READY"
    NO_ENCODER = "NO_ENCODER"
    INPUT_MISMATCH = "INPUT_MISMATCH"
    INTERRUPTED = "INTERRUPTED"
    CANCELLED = "CANCELLED"
    ENGINE_FAILED = "ENGINE_FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WORKER_DIED = "WORKER_DIED"
    MUX_FAILED = "MUX_FAILED"
    REVISION_COMPACTED = "REVISION_COMPACTED"
    # transport and faults of our own
    UNREACHABLE = "UNREACHABLE"
    DEADLINE = "DEADLINE"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True)
class Entry:
    """One row of the table: how a reason is told and what its reader should do."""

    code: grpc.StatusCode
    retryable: bool
    advice: str


_C = grpc.StatusCode
_INVALID = _C.INVALID_ARGUMENT

TABLE: Mapping[Reason, Entry] = {
    Reason.INVALID_FIELD: Entry(_INVALID, False, "Correct the named field."),
    Reason.BAD_ID: Entry(_INVALID, False, "Use an id of the documented form."),
    Reason.BAD_PAGE_TOKEN: Entry(_INVALID, False, "Start again from the first page."),
    Reason.PROMPT_EMPTY: Entry(_INVALID, False, "Send a prompt with at least one visible word."),
    Reason.PROMPT_TOO_LONG: Entry(
        _INVALID, False, "Shorten the prompt; the message says the limit."
    ),
    Reason.UNSUPPORTED_MODE: Entry(_INVALID, False, "Use a mode that the message lists."),
    Reason.FRAMES_OUT_OF_RANGE: Entry(
        _INVALID, False, "Use a length in the range that the message says."
    ),
    Reason.CANVAS_OFF_GRID: Entry(_INVALID, False, "Use the nearest canvas that the message says."),
    Reason.CANVAS_OUT_OF_RANGE: Entry(
        _INVALID, False, "Use a canvas within the limits that the message says."
    ),
    Reason.FPS_UNSUPPORTED: Entry(_INVALID, False, "Leave the frame rate out: the model makes 24."),
    Reason.EVALUATIONS_OUT_OF_RANGE: Entry(
        _INVALID, False, "Use a number in the range that the message says."
    ),
    Reason.REQUEST_ID_REUSED: Entry(_INVALID, False, "Use a fresh request_id for another request."),
    Reason.RUN_ID_REUSED: Entry(_INVALID, False, "Use a fresh run id for another run."),
    Reason.NOT_IMPLEMENTED: Entry(_C.UNIMPLEMENTED, False, "Wait for a later version."),
    Reason.UNAUTHENTICATED: Entry(
        _C.UNAUTHENTICATED, False, "Send `authorization: Bearer KEY` with a valid key or token."
    ),
    Reason.ROLE_FORBIDDEN: Entry(
        _C.PERMISSION_DENIED, False, "Call with a token whose role may do this."
    ),
    Reason.NOT_ADMIN: Entry(_C.PERMISSION_DENIED, False, "Call with an admin's key."),
    Reason.JOB_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Check the id and whose key you use."),
    Reason.ARTIFACT_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Check the id and whose key you use."),
    Reason.RUN_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Check the run id and the instance."),
    Reason.BUNDLE_NOT_FOUND: Entry(
        _C.NOT_FOUND, False, "Check bundle id, read token and instance; it may have been deleted."
    ),
    Reason.UPLOAD_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Start a new upload; this one has ended."),
    Reason.OWNER_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Check the owner's id."),
    Reason.INSTANCE_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Register the instance again."),
    Reason.KEY_NOT_FOUND: Entry(_C.NOT_FOUND, False, "Check the key's id."),
    Reason.OWNER_EXISTS: Entry(_C.ALREADY_EXISTS, False, "Choose another name."),
    Reason.BAD_MANIFEST: Entry(_INVALID, False, "Correct the manifest's named field."),
    Reason.BAD_TENSORS: Entry(
        _INVALID, False, "Send a safetensors file whose header equals the manifest."
    ),
    Reason.NON_FINITE: Entry(
        _INVALID, False, "A tensor holds NaN or Inf; find out where it came from."
    ),
    Reason.SIZE_MISMATCH: Entry(_INVALID, False, "Send as many bytes as were announced."),
    Reason.DIGEST_MISMATCH: Entry(
        _INVALID, False, "Start a new upload; the bytes are not those of the SHA-256."
    ),
    Reason.BAD_STREAM: Entry(_INVALID, False, "Send header, chunks and finish in that order."),
    Reason.CHUNK_TOO_LARGE: Entry(_INVALID, False, "Send chunks of 1 to 2,097,152 bytes."),
    Reason.CHUNK_CHECKSUM: Entry(
        _C.ABORTED, True, "A chunk was damaged on its way; resume from GetUpload's size."
    ),
    Reason.CHUNK_SEQUENCE: Entry(
        _C.ABORTED, True, "A chunk is missing or repeated; resume from GetUpload's size."
    ),
    Reason.UPLOAD_GAP: Entry(
        _C.OUT_OF_RANGE, True, "Continue from `persisted_size_bytes` in the error's metadata."
    ),
    Reason.WRITER_SUPERSEDED: Entry(
        _C.ABORTED, False, "A newer stream writes this upload; leave it to that one."
    ),
    Reason.STREAM_STALLED: Entry(
        _C.DEADLINE_EXCEEDED, True, "Nothing arrived for too long; resume."
    ),
    Reason.STREAM_INCOMPLETE: Entry(
        _C.ABORTED, True, "The stream ended before its finish; resume."
    ),
    Reason.BAD_RANGE: Entry(_C.OUT_OF_RANGE, False, "Ask for an offset within the size."),
    Reason.DISK_FULL: Entry(
        _C.RESOURCE_EXHAUSTED, True, "Free space on the instance's disk, then try again."
    ),
    Reason.BUNDLE_CORRUPT: Entry(
        _C.DATA_LOSS, False, "The stored file is damaged; make the output again."
    ),
    Reason.STALE_RUN: Entry(
        _C.ABORTED, False, "The run was superseded or cancelled; do nothing more for it."
    ),
    Reason.STALE_GENERATION: Entry(
        _C.ABORTED, False, "A newer start of the instance has taken over; exit."
    ),
    Reason.INSTANCE_HELD: Entry(
        _C.FAILED_PRECONDITION, True, "Another process holds this instance id; stop it or wait."
    ),
    Reason.JOB_ENDED: Entry(
        _C.FAILED_PRECONDITION, False, "The job has ended; nothing changes it."
    ),
    Reason.JOB_NOT_ENDED: Entry(
        _C.FAILED_PRECONDITION, True, "Wait for the job's end, then ask again."
    ),
    Reason.NOT_RESUMABLE: Entry(
        _C.FAILED_PRECONDITION, False, "Make the job again with CreateJob and the same seed."
    ),
    Reason.RUN_NOT_IN_DOUBT: Entry(
        _C.FAILED_PRECONDITION, False, "Only an UNKNOWN run takes a verdict; read its state."
    ),
    Reason.INSTANCE_ALIVE: Entry(
        _C.FAILED_PRECONDITION, False, "Stop the instance, or drain it, before it is removed."
    ),
    Reason.QUOTA_EXCEEDED: Entry(
        _C.RESOURCE_EXHAUSTED,
        True,
        "Wait until one of your jobs has ended; the error says how long.",
    ),
    Reason.QUEUE_FULL: Entry(
        _C.RESOURCE_EXHAUSTED, True, "The queue is full for everyone; the error says when to try."
    ),
    Reason.UNKNOWN_POOL: Entry(_INVALID, False, "Name a pool or sampler that ListInstances shows."),
    Reason.NO_INSTANCE_FITS: Entry(
        _C.FAILED_PRECONDITION, False, "No instance could ever run this; the message says why."
    ),
    Reason.BUSY: Entry(_C.RESOURCE_EXHAUSTED, True, "No slot is free; try later."),
    Reason.DRAINING: Entry(_C.UNAVAILABLE, True, "The service is stopping; try again soon."),
    Reason.NOT_READY: Entry(_C.UNAVAILABLE, True, "The service is still loading; try again soon."),
    Reason.NO_ENCODER: Entry(
        _C.UNAVAILABLE, True, "Start an encoder, or try again when one is ready."
    ),
    Reason.INPUT_MISMATCH: Entry(
        _INVALID, False, "Send the clip that the input bundle was made for."
    ),
    Reason.INTERRUPTED: Entry(
        _C.ABORTED, True, "The process died during the run; make the job again."
    ),
    Reason.CANCELLED: Entry(_C.CANCELLED, False, "It was cancelled on request."),
    Reason.ENGINE_FAILED: Entry(_C.INTERNAL, False, "Read the worker's own error in the message."),
    Reason.OUT_OF_MEMORY: Entry(
        _C.RESOURCE_EXHAUSTED, False, "Use a smaller canvas, fewer frames or a larger device."
    ),
    Reason.WORKER_DIED: Entry(
        _C.ABORTED, True, "The worker process ended; read its last words and try again."
    ),
    Reason.MUX_FAILED: Entry(
        _C.INTERNAL, True, "The MP4 did not pass its own check; read the message."
    ),
    Reason.REVISION_COMPACTED: Entry(
        _C.OUT_OF_RANGE, True, "Read the job and watch from its revision."
    ),
    Reason.UNREACHABLE: Entry(
        _C.UNAVAILABLE, True, "Check that the service runs and its address is right."
    ),
    Reason.DEADLINE: Entry(_C.DEADLINE_EXCEEDED, True, "The call took too long; try again."),
    Reason.INTERNAL: Entry(
        _C.INTERNAL, False, "A fault of reelmesh; its log has the traceback under the request id."
    ),
}


class MeshError(Exception):
    """An error to tell a caller: a reason from the table and words that say what to do.

    `field` is the path of the offending field as the caller wrote it ("spec.canvas.width");
    `retry_after_s` becomes a RetryInfo; `info` is small extra data for programs.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        info: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message[:_MESSAGE_LIMIT]
        self.field = field
        self.retry_after_s = retry_after_s
        self.info = dict(info or {})

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC code of its reason."""
        return TABLE[self.reason].code

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return TABLE[self.reason].retryable


def as_markdown() -> str:
    """`docs/errors.md`, from the table."""
    rows = "\n".join(
        f"| `{reason}` | {entry.code.name} | {('no', 'yes')[entry.retryable]} | {entry.advice} |"
        for reason, entry in TABLE.items()
    )
    return (
        "# Errors\n\n"
        "Every error carries a `google.rpc.ErrorInfo` with one of these reasons and the domain "
        f"`{DOMAIN}`;\nwhere a field is to blame a `google.rpc.BadRequest` names its path, and "
        "where waiting helps a\n`google.rpc.RetryInfo` says how long. The same reasons stand in "
        "`Failure.reason` of a run or a job.\nThis page is made from "
        "`services/common/rpc/errors.py` by `make protos`.\n\n"
        "| reason | code | retryable | what to do |\n|---|---|---|---|\n"
        f"{rows}\n"
    )
