import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from reelmesh.v1 import encoder_pb2 as _encoder_pb2
from reelmesh.v1 import stage_pb2 as _stage_pb2
from reelmesh.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_VERIFYING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_VERIFYING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState

class Canvas(_message.Message):
    __slots__ = ("height", "width")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("prompt", "mode", "canvas", "frames", "duration", "fps", "seed", "evaluations", "references", "priority", "pool", "sampler_id", "automatic_resumes")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CANVAS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_ID_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_RESUMES_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    mode: _transfer_pb2.Mode
    canvas: Canvas
    frames: int
    duration: _duration_pb2.Duration
    fps: float
    seed: int
    evaluations: int
    references: _containers.RepeatedCompositeFieldContainer[_encoder_pb2.Reference]
    priority: int
    pool: str
    sampler_id: str
    automatic_resumes: int
    def __init__(self, prompt: _Optional[str] = ..., mode: _Optional[_Union[_transfer_pb2.Mode, str]] = ..., canvas: _Optional[_Union[Canvas, _Mapping]] = ..., frames: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., fps: _Optional[float] = ..., seed: _Optional[int] = ..., evaluations: _Optional[int] = ..., references: _Optional[_Iterable[_Union[_encoder_pb2.Reference, _Mapping]]] = ..., priority: _Optional[int] = ..., pool: _Optional[str] = ..., sampler_id: _Optional[str] = ..., automatic_resumes: _Optional[int] = ...) -> None: ...

class ResolvedSpec(_message.Message):
    __slots__ = ("prompt", "clip", "seed", "evaluations", "inference_steps", "fps", "off_distribution", "prompt_tokens", "duration_s", "checkpoint_digest", "priority", "pool", "sampler_id", "automatic_resumes")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_STEPS_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    OFF_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_ID_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_RESUMES_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    clip: _transfer_pb2.Clip
    seed: int
    evaluations: int
    inference_steps: int
    fps: float
    off_distribution: bool
    prompt_tokens: int
    duration_s: float
    checkpoint_digest: str
    priority: int
    pool: str
    sampler_id: str
    automatic_resumes: int
    def __init__(self, prompt: _Optional[str] = ..., clip: _Optional[_Union[_transfer_pb2.Clip, _Mapping]] = ..., seed: _Optional[int] = ..., evaluations: _Optional[int] = ..., inference_steps: _Optional[int] = ..., fps: _Optional[float] = ..., off_distribution: _Optional[bool] = ..., prompt_tokens: _Optional[int] = ..., duration_s: _Optional[float] = ..., checkpoint_digest: _Optional[str] = ..., priority: _Optional[int] = ..., pool: _Optional[str] = ..., sampler_id: _Optional[str] = ..., automatic_resumes: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("run_id", "stage", "state", "instance_id", "generation", "failure", "timings", "bind_time", "end_time", "output_size_bytes", "output_sha256")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    BIND_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SHA256_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    stage: _stage_pb2.Stage
    state: _stage_pb2.RunState
    instance_id: str
    generation: int
    failure: _stage_pb2.Failure
    timings: _containers.RepeatedCompositeFieldContainer[_stage_pb2.PhaseTime]
    bind_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    output_size_bytes: int
    output_sha256: bytes
    def __init__(self, run_id: _Optional[str] = ..., stage: _Optional[_Union[_stage_pb2.Stage, str]] = ..., state: _Optional[_Union[_stage_pb2.RunState, str]] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., failure: _Optional[_Union[_stage_pb2.Failure, _Mapping]] = ..., timings: _Optional[_Iterable[_Union[_stage_pb2.PhaseTime, _Mapping]]] = ..., bind_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., output_size_bytes: _Optional[int] = ..., output_sha256: _Optional[bytes] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "state", "spec", "stage", "progress", "queue_position", "waiting_for", "failure", "artifact_id", "cancel_requested", "attempts", "create_time", "start_time", "end_time", "revision", "resumed_from", "resumes")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FROM_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    state: JobState
    spec: ResolvedSpec
    stage: _stage_pb2.Stage
    progress: _stage_pb2.Progress
    queue_position: int
    waiting_for: str
    failure: _stage_pb2.Failure
    artifact_id: str
    cancel_requested: bool
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    revision: int
    resumed_from: str
    resumes: int
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., spec: _Optional[_Union[ResolvedSpec, _Mapping]] = ..., stage: _Optional[_Union[_stage_pb2.Stage, str]] = ..., progress: _Optional[_Union[_stage_pb2.Progress, _Mapping]] = ..., queue_position: _Optional[int] = ..., waiting_for: _Optional[str] = ..., failure: _Optional[_Union[_stage_pb2.Failure, _Mapping]] = ..., artifact_id: _Optional[str] = ..., cancel_requested: _Optional[bool] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revision: _Optional[int] = ..., resumed_from: _Optional[str] = ..., resumes: _Optional[int] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("checkpoint", "checkpoint_revision", "checkpoint_digest", "loras", "precision", "attention", "cache", "layout")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REVISION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LORAS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    checkpoint_revision: str
    checkpoint_digest: str
    loras: _containers.RepeatedScalarFieldContainer[str]
    precision: str
    attention: str
    cache: str
    layout: str
    def __init__(self, checkpoint: _Optional[str] = ..., checkpoint_revision: _Optional[str] = ..., checkpoint_digest: _Optional[str] = ..., loras: _Optional[_Iterable[str]] = ..., precision: _Optional[str] = ..., attention: _Optional[str] = ..., cache: _Optional[str] = ..., layout: _Optional[str] = ...) -> None: ...

class RunReceipt(_message.Message):
    __slots__ = ("attempt", "recipe", "version", "inherited_from")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FROM_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    recipe: Recipe
    version: str
    inherited_from: str
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., version: _Optional[str] = ..., inherited_from: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("job_id", "state", "spec", "runs", "timings", "artifact_id", "artifact_size_bytes", "artifact_sha256", "resumed_from", "create_time", "end_time", "failure")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_SHA256_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FROM_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    state: JobState
    spec: ResolvedSpec
    runs: _containers.RepeatedCompositeFieldContainer[RunReceipt]
    timings: _containers.RepeatedCompositeFieldContainer[_stage_pb2.PhaseTime]
    artifact_id: str
    artifact_size_bytes: int
    artifact_sha256: bytes
    resumed_from: str
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    failure: _stage_pb2.Failure
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., spec: _Optional[_Union[ResolvedSpec, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[RunReceipt, _Mapping]]] = ..., timings: _Optional[_Iterable[_Union[_stage_pb2.PhaseTime, _Mapping]]] = ..., artifact_id: _Optional[str] = ..., artifact_size_bytes: _Optional[int] = ..., artifact_sha256: _Optional[bytes] = ..., resumed_from: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failure: _Optional[_Union[_stage_pb2.Failure, _Mapping]] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("spec", "request_id")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    spec: JobSpec
    request_id: str
    def __init__(self, spec: _Optional[_Union[JobSpec, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ValidateJobRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: JobSpec
    def __init__(self, spec: _Optional[_Union[JobSpec, _Mapping]] = ...) -> None: ...

class ValidateJobResponse(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: ResolvedSpec
    def __init__(self, spec: _Optional[_Union[ResolvedSpec, _Mapping]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[JobState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[JobState, str]]] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id", "start_revision")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    START_REVISION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    start_revision: int
    def __init__(self, job_id: _Optional[str] = ..., start_revision: _Optional[int] = ...) -> None: ...

class Bookmark(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ("job", "bookmark")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    job: Job
    bookmark: Bookmark
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., bookmark: _Optional[_Union[Bookmark, _Mapping]] = ...) -> None: ...

class WatchJobsRequest(_message.Message):
    __slots__ = ("start_revision",)
    START_REVISION_FIELD_NUMBER: _ClassVar[int]
    start_revision: int
    def __init__(self, start_revision: _Optional[int] = ...) -> None: ...

class WatchJobsResponse(_message.Message):
    __slots__ = ("job", "bookmark")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    job: Job
    bookmark: Bookmark
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., bookmark: _Optional[_Union[Bookmark, _Mapping]] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ResumeJobRequest(_message.Message):
    __slots__ = ("job_id", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ResumeJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class GetReceiptRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetReceiptResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: Receipt
    def __init__(self, receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...
