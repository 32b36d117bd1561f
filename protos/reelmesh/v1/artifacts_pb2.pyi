import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from reelmesh.v1 import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Artifact(_message.Message):
    __slots__ = ("artifact_id", "job_id", "manifest", "size_bytes", "sha256", "create_time", "file_name")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    job_id: str
    manifest: _transfer_pb2.Manifest
    size_bytes: int
    sha256: bytes
    create_time: _timestamp_pb2.Timestamp
    file_name: str
    def __init__(self, artifact_id: _Optional[str] = ..., job_id: _Optional[str] = ..., manifest: _Optional[_Union[_transfer_pb2.Manifest, _Mapping]] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., file_name: _Optional[str] = ...) -> None: ...

class CreateUploadRequest(_message.Message):
    __slots__ = ("manifest", "size_bytes", "request_id")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    manifest: _transfer_pb2.Manifest
    size_bytes: int
    request_id: str
    def __init__(self, manifest: _Optional[_Union[_transfer_pb2.Manifest, _Mapping]] = ..., size_bytes: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateUploadResponse(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class GetArtifactRequest(_message.Message):
    __slots__ = ("artifact_id",)
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    def __init__(self, artifact_id: _Optional[str] = ...) -> None: ...

class GetArtifactResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: Artifact
    def __init__(self, artifact: _Optional[_Union[Artifact, _Mapping]] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("artifact_id", "offset", "limit")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    offset: int
    limit: int
    def __init__(self, artifact_id: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class DownloadResponse(_message.Message):
    __slots__ = ("header", "chunk", "finish")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    header: _transfer_pb2.StreamHeader
    chunk: _transfer_pb2.Chunk
    finish: _transfer_pb2.Finish
    def __init__(self, header: _Optional[_Union[_transfer_pb2.StreamHeader, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ..., finish: _Optional[_Union[_transfer_pb2.Finish, _Mapping]] = ...) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListArtifactsResponse(_message.Message):
    __slots__ = ("artifacts", "next_page_token")
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    next_page_token: str
    def __init__(self, artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteArtifactRequest(_message.Message):
    __slots__ = ("artifact_id",)
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    def __init__(self, artifact_id: _Optional[str] = ...) -> None: ...

class DeleteArtifactResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GrantAccessRequest(_message.Message):
    __slots__ = ("artifact_id", "owner_id")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    owner_id: str
    def __init__(self, artifact_id: _Optional[str] = ..., owner_id: _Optional[str] = ...) -> None: ...

class GrantAccessResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RevokeAccessRequest(_message.Message):
    __slots__ = ("artifact_id", "owner_id")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    owner_id: str
    def __init__(self, artifact_id: _Optional[str] = ..., owner_id: _Optional[str] = ...) -> None: ...

class RevokeAccessResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
