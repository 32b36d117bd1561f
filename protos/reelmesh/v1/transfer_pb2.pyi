import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BundleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUNDLE_KIND_UNSPECIFIED: _ClassVar[BundleKind]
    BUNDLE_KIND_CONDITIONING: _ClassVar[BundleKind]
    BUNDLE_KIND_LATENTS: _ClassVar[BundleKind]
    BUNDLE_KIND_VIDEO: _ClassVar[BundleKind]
    BUNDLE_KIND_MEDIA: _ClassVar[BundleKind]

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_BOOL: _ClassVar[Dtype]
    DTYPE_U8: _ClassVar[Dtype]
    DTYPE_I8: _ClassVar[Dtype]
    DTYPE_U16: _ClassVar[Dtype]
    DTYPE_I16: _ClassVar[Dtype]
    DTYPE_U32: _ClassVar[Dtype]
    DTYPE_I32: _ClassVar[Dtype]
    DTYPE_U64: _ClassVar[Dtype]
    DTYPE_I64: _ClassVar[Dtype]
    DTYPE_F16: _ClassVar[Dtype]
    DTYPE_BF16: _ClassVar[Dtype]
    DTYPE_F32: _ClassVar[Dtype]
    DTYPE_F64: _ClassVar[Dtype]
    DTYPE_F8_E4M3: _ClassVar[Dtype]
    DTYPE_F8_E5M2: _ClassVar[Dtype]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_T2VA: _ClassVar[Mode]
    MODE_FL2VA: _ClassVar[Mode]
    MODE_REF2VA: _ClassVar[Mode]
BUNDLE_KIND_UNSPECIFIED: BundleKind
BUNDLE_KIND_CONDITIONING: BundleKind
BUNDLE_KIND_LATENTS: BundleKind
BUNDLE_KIND_VIDEO: BundleKind
BUNDLE_KIND_MEDIA: BundleKind
DTYPE_UNSPECIFIED: Dtype
DTYPE_BOOL: Dtype
DTYPE_U8: Dtype
DTYPE_I8: Dtype
DTYPE_U16: Dtype
DTYPE_I16: Dtype
DTYPE_U32: Dtype
DTYPE_I32: Dtype
DTYPE_U64: Dtype
DTYPE_I64: Dtype
DTYPE_F16: Dtype
DTYPE_BF16: Dtype
DTYPE_F32: Dtype
DTYPE_F64: Dtype
DTYPE_F8_E4M3: Dtype
DTYPE_F8_E5M2: Dtype
MODE_UNSPECIFIED: Mode
MODE_T2VA: Mode
MODE_FL2VA: Mode
MODE_REF2VA: Mode

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Clip(_message.Message):
    __slots__ = ("mode", "height", "width", "frames")
    MODE_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    mode: Mode
    height: int
    width: int
    frames: int
    def __init__(self, mode: _Optional[_Union[Mode, str]] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("kind", "media_type", "tensors", "clip")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    kind: BundleKind
    media_type: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    clip: Clip
    def __init__(self, kind: _Optional[_Union[BundleKind, str]] = ..., media_type: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., clip: _Optional[_Union[Clip, _Mapping]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("run_id", "token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    token: str
    def __init__(self, run_id: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("bundle_id", "manifest", "size_bytes", "sha256", "read_token", "create_time")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    bundle_id: str
    manifest: Manifest
    size_bytes: int
    sha256: bytes
    read_token: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, bundle_id: _Optional[str] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., read_token: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class BundleRef(_message.Message):
    __slots__ = ("instance_id", "endpoint", "bundle_id", "size_bytes", "sha256", "read_token")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    endpoint: str
    bundle_id: str
    size_bytes: int
    sha256: bytes
    read_token: str
    def __init__(self, instance_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., bundle_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., read_token: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data", "crc32c")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    crc32c: int
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("size_bytes", "sha256")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    sha256: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class StreamHeader(_message.Message):
    __slots__ = ("manifest", "size_bytes", "sha256")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    size_bytes: int
    sha256: bytes
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class StartUploadRequest(_message.Message):
    __slots__ = ("manifest", "size_bytes", "lease")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    size_bytes: int
    lease: Lease
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., size_bytes: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class StartUploadResponse(_message.Message):
    __slots__ = ("upload_id", "expire_time", "chunk_bytes")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    expire_time: _timestamp_pb2.Timestamp
    chunk_bytes: int
    def __init__(self, upload_id: _Optional[str] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class WriteHeader(_message.Message):
    __slots__ = ("upload_id", "lease")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    lease: Lease
    def __init__(self, upload_id: _Optional[str] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("header", "chunk", "finish")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    header: WriteHeader
    chunk: Chunk
    finish: Finish
    def __init__(self, header: _Optional[_Union[WriteHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class GetUploadResponse(_message.Message):
    __slots__ = ("persisted_size_bytes", "bundle")
    PERSISTED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    persisted_size_bytes: int
    bundle: Bundle
    def __init__(self, persisted_size_bytes: _Optional[int] = ..., bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("bundle_id", "read_token", "offset")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    bundle_id: str
    read_token: str
    offset: int
    def __init__(self, bundle_id: _Optional[str] = ..., read_token: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("header", "chunk", "finish")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    header: StreamHeader
    chunk: Chunk
    finish: Finish
    def __init__(self, header: _Optional[_Union[StreamHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ("bundle_id", "read_token")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    bundle_id: str
    read_token: str
    def __init__(self, bundle_id: _Optional[str] = ..., read_token: _Optional[str] = ...) -> None: ...

class StatResponse(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("bundle_id", "read_token")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    READ_TOKEN_FIELD_NUMBER: _ClassVar[int]
    bundle_id: str
    read_token: str
    def __init__(self, bundle_id: _Optional[str] = ..., read_token: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
