"""What a stage's servicer hands to the runtime: one run, its input, and how to do it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from google.protobuf.message import Message

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.work import Watch

# (input file or None, output file to write, watch) -> seconds by phase. Blocks; runs in a thread.
Work = Callable[[Path | None, Path, Watch], Mapping[str, float]]


@dataclass(frozen=True)
class Order:
    """One run of one stage."""

    stage: stage_pb2.Stage
    spec: stage_pb2.RunSpec
    clip: transfer_pb2.Clip
    # SHA-256 of the whole request, hexadecimal: what makes a repeated start the same start.
    digest: str
    # The bundle to pull first, and what it must be.
    source: transfer_pb2.BundleRef | None
    source_kind: transfer_pb2.BundleKind
    output_kind: transfer_pb2.BundleKind
    # Disk that the output needs at most, as far as it can be known before.
    output_bytes: int
    work: Work


@dataclass(frozen=True)
class Output:
    """A committed output on its way to the registry."""

    order: Order
    bundle: transfer_pb2.Bundle
    path: Path
    # Seconds by phase, so far.
    timings: Mapping[str, float]
    # report(bytes sent, bytes in all)
    report: Callable[[int, int], None]


# -> artifact id, "" if it could not be delivered now.
Deliver = Callable[[Output], Awaitable[str]]


def phase_times(timings: Mapping[str, float]) -> list[stage_pb2.PhaseTime]:
    """Seconds by phase as the contract has them."""
    times = [stage_pb2.PhaseTime(phase=phase) for phase in timings]
    for time, seconds in zip(times, timings.values(), strict=True):
        time.duration.FromTimedelta(timedelta(seconds=seconds))
    return times


def digest_of(request: Message) -> str:
    """A start request's digest, hexadecimal."""
    return sha256(request.SerializeToString(deterministic=True)).hexdigest()
