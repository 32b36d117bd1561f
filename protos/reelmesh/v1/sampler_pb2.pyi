from reelmesh.v1 import stage_pb2 as _stage_pb2
from reelmesh.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartSampleRequest(_message.Message):
    __slots__ = ("run", "clip", "conditioning", "seed", "evaluations", "resume_run_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    CONDITIONING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    RESUME_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run: _stage_pb2.RunSpec
    clip: _transfer_pb2.Clip
    conditioning: _transfer_pb2.BundleRef
    seed: int
    evaluations: int
    resume_run_id: str
    def __init__(self, run: _Optional[_Union[_stage_pb2.RunSpec, _Mapping]] = ..., clip: _Optional[_Union[_transfer_pb2.Clip, _Mapping]] = ..., conditioning: _Optional[_Union[_transfer_pb2.BundleRef, _Mapping]] = ..., seed: _Optional[int] = ..., evaluations: _Optional[int] = ..., resume_run_id: _Optional[str] = ...) -> None: ...

class StartSampleResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _stage_pb2.Run
    def __init__(self, run: _Optional[_Union[_stage_pb2.Run, _Mapping]] = ...) -> None: ...
