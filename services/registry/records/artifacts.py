"""Artifacts: published once, in the transaction that ends their run and job."""

import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import tuple_
from sqlmodel import Session, col, select

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import JOB_TERMINAL, RunEvent, Stage, holds_slot
from services.registry.records.changes import change_run, lock_run
from services.registry.records.pages import Place
from services.registry.schema import ArtifactRow, JobRow, RunRow


@dataclass(frozen=True)
class Draft:
    """A file that lies in its place already and becomes an artifact if the transaction does."""

    artifact_id: str
    manifest: transfer_pb2.Manifest
    size_bytes: int
    sha256: bytes
    block_sums: Sequence[int]
    # As RunRow.timings; empty: what the run has told before stays.
    timings: bytes = b""


def publish(session: Session, run_id: str, draft: Draft) -> ArtifactRow:
    """Artifact, run and job SUCCEEDED, together or not at all.

    A repeat returns the artifact that is there. JOB_ENDED after a cancel, or if the job ended
    otherwise; STALE_RUN if the run was given up.
    """
    locked = lock_run(session, run_id)
    if locked is None:
        raise stale_run()
    run, job = locked
    if (known := find_of_run(session, run_id)) is not None:
        return known
    check_publishable(run, job)
    artifact = ArtifactRow(
        artifact_id=draft.artifact_id,
        owner_id=job.owner_id,
        job_id=job.job_id,
        run_id=run_id,
        manifest=draft.manifest.SerializeToString(),
        size_bytes=draft.size_bytes,
        sha256=draft.sha256,
        block_sums=struct.pack(f">{len(draft.block_sums)}I", *draft.block_sums),
    )
    session.add(artifact)
    job.artifact_id = artifact.artifact_id
    run.output_size_bytes, run.output_sha256 = draft.size_bytes, draft.sha256
    run.timings = draft.timings or run.timings
    change_run(session, run, job, RunEvent.PUBLISHED)
    return artifact


def check_publishable(run: RunRow, job: JobRow) -> None:
    """Raise what `publish` would, so that no bytes are moved in vain."""
    if job.state in JOB_TERMINAL or job.cancel_requested:
        raise MeshError(Reason.JOB_ENDED, "the job has ended or is cancelled")
    if not holds_slot(run.state) or run.stage is not Stage.DECODE:
        raise stale_run()


def check_lease(session: Session, run_id: str, token: str) -> tuple[RunRow, JobRow]:
    """The run that this lease is of, with its job; STALE_RUN for every lease that is not one."""
    run = session.get(RunRow, run_id) if "\0" not in run_id else None
    # Compared also when there is no run, so that the time tells nothing either.
    secret = run.lease_token if run is not None else "none"
    valid = hmac.compare_digest(secret.encode(), token.encode())
    if run is None or not valid:
        raise stale_run()
    return run, session.get_one(JobRow, run.job_id)


def stale_run() -> MeshError:
    """Alike for every lease that is not the run's, or not any more."""
    return MeshError(Reason.STALE_RUN, "the run was superseded or cancelled, or is not known")


def find_of_run(session: Session, run_id: str) -> ArtifactRow | None:
    """What the run has published."""
    return session.exec(select(ArtifactRow).where(col(ArtifactRow.run_id) == run_id)).first()


def find_artifact(session: Session, owner_id: str, artifact_id: str) -> ArtifactRow:
    """The owner's artifact. One of another, an unknown and a malformed id are all alike."""
    query = select(ArtifactRow).where(
        col(ArtifactRow.artifact_id) == artifact_id, col(ArtifactRow.owner_id) == owner_id
    )
    artifact = session.exec(query).first() if "\0" not in artifact_id else None
    if artifact is None:
        raise MeshError(Reason.ARTIFACT_NOT_FOUND, "there is no such artifact")
    return artifact


def list_artifacts(
    session: Session, owner_id: str, after: Place | None, size: int
) -> Sequence[ArtifactRow]:
    """The owner's artifacts, newest first, at most `size`."""
    query = select(ArtifactRow).where(col(ArtifactRow.owner_id) == owner_id)
    if after is not None:
        place = tuple_(col(ArtifactRow.create_time), col(ArtifactRow.artifact_id))
        query = query.where(place < tuple_(after.time, after.row_id))
    query = query.order_by(col(ArtifactRow.create_time).desc(), col(ArtifactRow.artifact_id).desc())
    return session.exec(query.limit(size)).all()


def all_artifact_ids(session: Session) -> set[str]:
    """Every artifact's id, to tell what else lies in the folder."""
    return set(session.exec(select(ArtifactRow.artifact_id)))


def artifact_ids_since(session: Session, time: datetime) -> Sequence[str]:
    """Ids of artifacts that were published since."""
    query = select(ArtifactRow.artifact_id).where(col(ArtifactRow.create_time) >= time)
    return session.exec(query).all()


def unpack_sums(artifact: ArtifactRow) -> tuple[int, ...]:
    """The sums of the artifact's blocks."""
    return struct.unpack(f">{len(artifact.block_sums) // 4}I", artifact.block_sums)
