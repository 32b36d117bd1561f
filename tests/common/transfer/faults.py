"""What can go wrong with a stream, as functions over its messages, and what must be said.

The messages are honest chunks of 1 MiB and a finish; each fault changes the list.
"""

from collections.abc import Callable
from typing import Any

from services.common.rpc.errors import Reason
from services.common.transfer.chunks import MAX_CHUNK_BYTES

Messages = list[Any]


def _drop_last(messages: Messages) -> Messages:
    return [*messages[:-2], messages[-1]]


def _drop_middle(messages: Messages) -> Messages:
    return [messages[0], *messages[2:]]


def _drop_first(messages: Messages) -> Messages:
    return messages[1:]


def _repeat(messages: Messages) -> Messages:
    return [messages[0], messages[1], *messages[1:]]


def _swap(messages: Messages) -> Messages:
    return [messages[0], messages[2], messages[1], *messages[3:]]


def _cut(messages: Messages) -> Messages:
    return messages[:2]


def _flip(messages: Messages) -> Messages:
    chunk = messages[1].chunk
    data = bytearray(chunk.data)
    data[77] ^= 4
    chunk.data = bytes(data)
    return messages


def _flip_unseen(messages: Messages) -> Messages:
    _flip(messages)[1].chunk.ClearField("crc32c")
    return messages


def _lie_on_total(messages: Messages) -> Messages:
    messages[-1].finish.size_bytes += 1
    return messages


def _wrong_digest(messages: Messages) -> Messages:
    messages[-1].finish.sha256 = bytes(32)
    return messages


def _no_digest(messages: Messages) -> Messages:
    messages[-1].finish.sha256 = b""
    return messages


def _too_many(messages: Messages) -> Messages:
    extra = type(messages[0])()
    last = messages[-2].chunk
    extra.chunk.offset = last.offset + len(last.data)
    extra.chunk.data = b"more"
    return [*messages[:-1], extra, messages[-1]]


def _oversize(messages: Messages) -> Messages:
    messages[0].chunk.data = bytes(MAX_CHUNK_BYTES + 1)
    return messages


def _empty(messages: Messages) -> Messages:
    messages[1].chunk.data = b""
    return messages


def _nothing_said(messages: Messages) -> Messages:
    return [messages[0], type(messages[0])(), *messages[1:]]


def _negative(messages: Messages) -> Messages:
    messages[0].chunk.offset = -1
    return messages


FAULTS: dict[str, tuple[Callable[[Messages], Messages], Reason]] = {
    "last chunk dropped": (_drop_last, Reason.CHUNK_SEQUENCE),
    "middle chunk dropped": (_drop_middle, Reason.CHUNK_SEQUENCE),
    "first chunk dropped": (_drop_first, Reason.UPLOAD_GAP),
    "chunk repeated": (_repeat, Reason.CHUNK_SEQUENCE),
    "chunks swapped": (_swap, Reason.CHUNK_SEQUENCE),
    "stream cut": (_cut, Reason.STREAM_INCOMPLETE),
    "byte flipped": (_flip, Reason.CHUNK_CHECKSUM),
    "byte flipped, no crc": (_flip_unseen, Reason.DIGEST_MISMATCH),
    "lying total": (_lie_on_total, Reason.SIZE_MISMATCH),
    "wrong digest": (_wrong_digest, Reason.DIGEST_MISMATCH),
    "no digest": (_no_digest, Reason.BAD_STREAM),
    "more than announced": (_too_many, Reason.SIZE_MISMATCH),
    "oversize chunk": (_oversize, Reason.CHUNK_TOO_LARGE),
    "empty chunk": (_empty, Reason.CHUNK_TOO_LARGE),
    "empty message": (_nothing_said, Reason.BAD_STREAM),
    "negative offset": (_negative, Reason.CHUNK_SEQUENCE),
}
# After these the upload has ended; after the others it can be resumed.
ENDING = (Reason.SIZE_MISMATCH, Reason.DIGEST_MISMATCH, Reason.BAD_TENSORS, Reason.NON_FINITE)
