import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from reelmesh.v1 import artifacts_pb2 as _artifacts_pb2
from reelmesh.v1 import stage_pb2 as _stage_pb2
from reelmesh.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: _stage_pb2.Instance
    def __init__(self, instance: _Optional[_Union[_stage_pb2.Instance, _Mapping]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("generation", "heartbeat_interval", "lease")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    heartbeat_interval: _duration_pb2.Duration
    lease: _duration_pb2.Duration
    def __init__(self, generation: _Optional[int] = ..., heartbeat_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("instance_id", "generation", "boot_id", "run_ids", "serving")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    generation: int
    boot_id: str
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    serving: bool
    def __init__(self, instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., boot_id: _Optional[str] = ..., run_ids: _Optional[_Iterable[str]] = ..., serving: _Optional[bool] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("drain", "release")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    drain: bool
    release: bool
    def __init__(self, drain: _Optional[bool] = ..., release: _Optional[bool] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("lease", "upload_id", "timings")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    lease: _transfer_pb2.Lease
    upload_id: str
    timings: _containers.RepeatedCompositeFieldContainer[_stage_pb2.PhaseTime]
    def __init__(self, lease: _Optional[_Union[_transfer_pb2.Lease, _Mapping]] = ..., upload_id: _Optional[str] = ..., timings: _Optional[_Iterable[_Union[_stage_pb2.PhaseTime, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: _artifacts_pb2.Artifact
    def __init__(self, artifact: _Optional[_Union[_artifacts_pb2.Artifact, _Mapping]] = ...) -> None: ...
