from reelmesh.v1 import stage_pb2 as _stage_pb2
from reelmesh.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReferenceRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFERENCE_ROLE_UNSPECIFIED: _ClassVar[ReferenceRole]
    REFERENCE_ROLE_FIRST_FRAME: _ClassVar[ReferenceRole]
    REFERENCE_ROLE_LAST_FRAME: _ClassVar[ReferenceRole]
    REFERENCE_ROLE_IMAGE: _ClassVar[ReferenceRole]
    REFERENCE_ROLE_VIDEO: _ClassVar[ReferenceRole]
    REFERENCE_ROLE_AUDIO: _ClassVar[ReferenceRole]
REFERENCE_ROLE_UNSPECIFIED: ReferenceRole
REFERENCE_ROLE_FIRST_FRAME: ReferenceRole
REFERENCE_ROLE_LAST_FRAME: ReferenceRole
REFERENCE_ROLE_IMAGE: ReferenceRole
REFERENCE_ROLE_VIDEO: ReferenceRole
REFERENCE_ROLE_AUDIO: ReferenceRole

class StartEncodeRequest(_message.Message):
    __slots__ = ("run", "clip", "prompt", "references")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    run: _stage_pb2.RunSpec
    clip: _transfer_pb2.Clip
    prompt: str
    references: _containers.RepeatedCompositeFieldContainer[Reference]
    def __init__(self, run: _Optional[_Union[_stage_pb2.RunSpec, _Mapping]] = ..., clip: _Optional[_Union[_transfer_pb2.Clip, _Mapping]] = ..., prompt: _Optional[str] = ..., references: _Optional[_Iterable[_Union[Reference, _Mapping]]] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("bundle", "role")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    bundle: _transfer_pb2.BundleRef
    role: ReferenceRole
    def __init__(self, bundle: _Optional[_Union[_transfer_pb2.BundleRef, _Mapping]] = ..., role: _Optional[_Union[ReferenceRole, str]] = ...) -> None: ...

class StartEncodeResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _stage_pb2.Run
    def __init__(self, run: _Optional[_Union[_stage_pb2.Run, _Mapping]] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("prompt", "media")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    media: _transfer_pb2.BundleRef
    def __init__(self, prompt: _Optional[str] = ..., media: _Optional[_Union[_transfer_pb2.BundleRef, _Mapping]] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("prompt_tokens", "max_prompt_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    max_prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ...) -> None: ...
