from reelmesh.v1 import stage_pb2 as _stage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_NEVER_RAN: _ClassVar[Verdict]
    VERDICT_FAILED: _ClassVar[Verdict]
    VERDICT_KEEP_WAITING: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_NEVER_RAN: Verdict
VERDICT_FAILED: Verdict
VERDICT_KEEP_WAITING: Verdict

class ListInstancesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListInstancesResponse(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[_stage_pb2.Instance]
    def __init__(self, instances: _Optional[_Iterable[_Union[_stage_pb2.Instance, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("instance_id",)
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    def __init__(self, instance_id: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: _stage_pb2.Instance
    def __init__(self, instance: _Optional[_Union[_stage_pb2.Instance, _Mapping]] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("instance_id", "note")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    note: str
    def __init__(self, instance_id: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: _stage_pb2.Instance
    def __init__(self, instance: _Optional[_Union[_stage_pb2.Instance, _Mapping]] = ...) -> None: ...

class ResolveRunRequest(_message.Message):
    __slots__ = ("run_id", "verdict", "note")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    verdict: Verdict
    note: str
    def __init__(self, run_id: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., note: _Optional[str] = ...) -> None: ...

class ResolveRunResponse(_message.Message):
    __slots__ = ("job_id", "state")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    state: _stage_pb2.RunState
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[_Union[_stage_pb2.RunState, str]] = ...) -> None: ...
