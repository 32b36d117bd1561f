import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from reelmesh.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_ENCODE: _ClassVar[Stage]
    STAGE_SAMPLE: _ClassVar[Stage]
    STAGE_DECODE: _ClassVar[Stage]

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_BOUND: _ClassVar[RunState]
    RUN_STATE_ACCEPTED: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_UNKNOWN: _ClassVar[RunState]
    RUN_STATE_SUCCEEDED: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]
    RUN_STATE_REFUSED: _ClassVar[RunState]
    RUN_STATE_LOST: _ClassVar[RunState]

class InstanceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INSTANCE_STATE_UNSPECIFIED: _ClassVar[InstanceState]
    INSTANCE_STATE_READY: _ClassVar[InstanceState]
    INSTANCE_STATE_DRAINING: _ClassVar[InstanceState]
    INSTANCE_STATE_SUSPECT: _ClassVar[InstanceState]
    INSTANCE_STATE_GONE: _ClassVar[InstanceState]
STAGE_UNSPECIFIED: Stage
STAGE_ENCODE: Stage
STAGE_SAMPLE: Stage
STAGE_DECODE: Stage
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_BOUND: RunState
RUN_STATE_ACCEPTED: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_UNKNOWN: RunState
RUN_STATE_SUCCEEDED: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState
RUN_STATE_REFUSED: RunState
RUN_STATE_LOST: RunState
INSTANCE_STATE_UNSPECIFIED: InstanceState
INSTANCE_STATE_READY: InstanceState
INSTANCE_STATE_DRAINING: InstanceState
INSTANCE_STATE_SUSPECT: InstanceState
INSTANCE_STATE_GONE: InstanceState

class Progress(_message.Message):
    __slots__ = ("phase", "done", "total")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done: int
    total: int
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "message", "stage", "retryable", "resumable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    stage: Stage
    retryable: bool
    resumable: bool
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., retryable: _Optional[bool] = ..., resumable: _Optional[bool] = ...) -> None: ...

class PhaseTime(_message.Message):
    __slots__ = ("phase", "duration")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    phase: str
    duration: _duration_pb2.Duration
    def __init__(self, phase: _Optional[str] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RunSpec(_message.Message):
    __slots__ = ("run_id", "job_id", "owner_id", "generation", "journal_id", "lease_token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    owner_id: str
    generation: int
    journal_id: str
    lease_token: str
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., owner_id: _Optional[str] = ..., generation: _Optional[int] = ..., journal_id: _Optional[str] = ..., lease_token: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "stage", "state", "job_id", "progress", "failure", "output", "output_manifest", "timings", "create_time", "start_time", "end_time", "instance_id", "generation", "cancel_requested", "artifact_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    stage: Stage
    state: RunState
    job_id: str
    progress: Progress
    failure: Failure
    output: _transfer_pb2.BundleRef
    output_manifest: _transfer_pb2.Manifest
    timings: _containers.RepeatedCompositeFieldContainer[PhaseTime]
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    instance_id: str
    generation: int
    cancel_requested: bool
    artifact_id: str
    def __init__(self, run_id: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., state: _Optional[_Union[RunState, str]] = ..., job_id: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., output: _Optional[_Union[_transfer_pb2.BundleRef, _Mapping]] = ..., output_manifest: _Optional[_Union[_transfer_pb2.Manifest, _Mapping]] = ..., timings: _Optional[_Iterable[_Union[PhaseTime, _Mapping]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., cancel_requested: _Optional[bool] = ..., artifact_id: _Optional[str] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("stage", "modes", "checkpoint", "checkpoint_digest", "limits", "slots", "layout", "precision", "checkpoint_revision", "loras", "attention", "cache")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REVISION_FIELD_NUMBER: _ClassVar[int]
    LORAS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    modes: _containers.RepeatedScalarFieldContainer[_transfer_pb2.Mode]
    checkpoint: str
    checkpoint_digest: str
    limits: Limits
    slots: int
    layout: str
    precision: str
    checkpoint_revision: str
    loras: _containers.RepeatedScalarFieldContainer[str]
    attention: str
    cache: str
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., modes: _Optional[_Iterable[_Union[_transfer_pb2.Mode, str]]] = ..., checkpoint: _Optional[str] = ..., checkpoint_digest: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., slots: _Optional[int] = ..., layout: _Optional[str] = ..., precision: _Optional[str] = ..., checkpoint_revision: _Optional[str] = ..., loras: _Optional[_Iterable[str]] = ..., attention: _Optional[str] = ..., cache: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("min_frames", "max_frames", "trained_max_frames", "frame_step", "frame_base", "canvas_multiple", "min_edge", "max_pixels", "default_height", "default_width", "default_frames", "default_evaluations", "max_evaluations", "max_prompt_tokens", "max_aspect", "memory_base_bytes", "memory_per_row_bytes")
    MIN_FRAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAMES_FIELD_NUMBER: _ClassVar[int]
    TRAINED_MAX_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAME_STEP_FIELD_NUMBER: _ClassVar[int]
    FRAME_BASE_FIELD_NUMBER: _ClassVar[int]
    CANVAS_MULTIPLE_FIELD_NUMBER: _ClassVar[int]
    MIN_EDGE_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FRAMES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_ASPECT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PER_ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    min_frames: int
    max_frames: int
    trained_max_frames: int
    frame_step: int
    frame_base: int
    canvas_multiple: int
    min_edge: int
    max_pixels: int
    default_height: int
    default_width: int
    default_frames: int
    default_evaluations: int
    max_evaluations: int
    max_prompt_tokens: int
    max_aspect: float
    memory_base_bytes: int
    memory_per_row_bytes: float
    def __init__(self, min_frames: _Optional[int] = ..., max_frames: _Optional[int] = ..., trained_max_frames: _Optional[int] = ..., frame_step: _Optional[int] = ..., frame_base: _Optional[int] = ..., canvas_multiple: _Optional[int] = ..., min_edge: _Optional[int] = ..., max_pixels: _Optional[int] = ..., default_height: _Optional[int] = ..., default_width: _Optional[int] = ..., default_frames: _Optional[int] = ..., default_evaluations: _Optional[int] = ..., max_evaluations: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., max_aspect: _Optional[float] = ..., memory_base_bytes: _Optional[int] = ..., memory_per_row_bytes: _Optional[float] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("instance_id", "endpoint", "generation", "boot_id", "journal_id", "capabilities", "state", "busy_slots", "heartbeat_time", "version", "run_ids", "pool", "drain_requested")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BUSY_SLOTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    endpoint: str
    generation: int
    boot_id: str
    journal_id: str
    capabilities: Capabilities
    state: InstanceState
    busy_slots: int
    heartbeat_time: _timestamp_pb2.Timestamp
    version: str
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    drain_requested: bool
    def __init__(self, instance_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., generation: _Optional[int] = ..., boot_id: _Optional[str] = ..., journal_id: _Optional[str] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., state: _Optional[_Union[InstanceState, str]] = ..., busy_slots: _Optional[int] = ..., heartbeat_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[str] = ..., run_ids: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., drain_requested: _Optional[bool] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run", "journal_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    run: Run
    journal_id: str
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., journal_id: _Optional[str] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id", "journal_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    journal_id: str
    def __init__(self, run_id: _Optional[str] = ..., journal_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DescribeInstanceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeInstanceResponse(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ...) -> None: ...
