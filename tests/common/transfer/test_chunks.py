"""Framing without a network: whatever comes, only the right bytes come out."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.chunks import ChunkAssembler, fill_chunk
from services.common.transfer.digest import RunningDigest
from tests.common.transfer.faults import FAULTS
from tests.common.transfer.harness import sample, wire

DATA = sample((3 << 20) + 5)


def feed(assembler: ChunkAssembler, messages: list[Any]) -> bytes:
    """All bytes that come out."""
    return b"".join(assembler.take(message) for message in messages)


def test_an_honest_stream_comes_out_as_it_went_in() -> None:
    """Chunks with and without CRC give back the bytes."""
    for crc in (True, False):
        assert feed(ChunkAssembler(len(DATA)), wire(DATA, crc=crc)) == DATA


# Those that only the reader of the stream, or who has the digest, can see.
ELSEWHERE = (Reason.STREAM_INCOMPLETE, Reason.DIGEST_MISMATCH)


@pytest.mark.parametrize("name", [n for n, (_, r) in FAULTS.items() if r not in ELSEWHERE])
def test_a_fault_is_told_by_its_reason(name: str) -> None:
    """Every fault that framing can see has its own reason."""
    fault, reason = FAULTS[name]
    with pytest.raises(MeshError) as caught:
        feed(ChunkAssembler(len(DATA)), fault(wire(DATA)))
    assert caught.value.reason is reason


def test_a_gap_says_where_to_continue() -> None:
    """UPLOAD_GAP carries the persisted size."""
    with pytest.raises(MeshError) as caught:
        ChunkAssembler(len(DATA), 7).take(wire(DATA)[1])
    assert caught.value.info == {"persisted_size_bytes": "7"}


def test_only_the_first_chunk_may_overlap() -> None:
    """The overlap of a stream's first chunk is skipped; a second chunk may have none."""
    messages = wire(DATA)
    assembler = ChunkAssembler(len(DATA), 100)
    assert assembler.take(messages[0]) == DATA[100 : 1 << 20]
    with pytest.raises(MeshError) as caught:
        assembler.take(wire(DATA, offset=(1 << 20) - 1)[0])
    assert caught.value.reason is Reason.CHUNK_SEQUENCE


def test_nothing_follows_a_finish() -> None:
    """A chunk after the finish is out of place."""
    assembler = ChunkAssembler(len(DATA))
    messages = wire(DATA)
    feed(assembler, messages)
    with pytest.raises(MeshError) as caught:
        assembler.take(messages[0])
    assert caught.value.reason is Reason.BAD_STREAM


chunks = st.builds(
    lambda offset, length, flip, crc: (offset, length, flip, crc),
    st.integers(-3, 40),
    st.integers(0, 20),
    st.booleans(),
    st.booleans(),
)


@given(st.integers(1, 40), st.integers(0, 40), st.lists(chunks, max_size=12), st.booleans())
def test_what_comes_out_is_always_a_run_of_the_right_bytes(
    size: int, persisted: int, plan: list[tuple[int, int, bool, bool]], end: bool
) -> None:
    """Any sequence of chunks gives exactly the bytes from `persisted` on, or an error."""
    data = sample(64)
    persisted = min(persisted, size)
    assembler = ChunkAssembler(size, persisted)
    out = b""
    damaged = False
    try:
        for offset, length, flip, crc in plan:
            message = transfer_pb2.WriteRequest()
            piece = data[max(offset, 0) : max(offset, 0) + length]
            fill_chunk(message.chunk, offset, piece)
            if flip and piece:
                message.chunk.data = bytes([piece[0] ^ 1]) + piece[1:]
            if not crc:
                message.chunk.ClearField("crc32c")
                damaged = damaged or (flip and bool(piece))
            out += assembler.take(message)
        if end:
            assembler.take(
                transfer_pb2.WriteRequest(
                    finish=transfer_pb2.Finish(
                        size_bytes=size, sha256=hashlib.sha256(data[:size]).digest()
                    )
                )
            )
            assert persisted + len(out) == size
    except MeshError:
        pass
    assert assembler.next_offset == persisted + len(out) <= size
    if not damaged:
        assert out == data[persisted : persisted + len(out)]


@given(st.lists(st.integers(1, 3 << 19), max_size=6))
def test_block_sums_do_not_depend_on_how_bytes_arrive(lengths: list[int]) -> None:
    """The digest of pieces is the digest of the whole."""
    data = sample(sum(lengths))
    whole, pieces = RunningDigest(), RunningDigest()
    whole.update(data)
    at = 0
    for length in lengths:
        pieces.update(data[at : at + length])
        at += length
    assert pieces.block_sums() == whole.block_sums()
    assert pieces.copy().sha256() == whole.sha256() == hashlib.sha256(data).digest()
