"""Resumes: a new job that works on what an ended one left, and redoes only what is missing.

A half-done denoise goes on from its sampler's last snapshot if the new job is bound to the same
instance (records/halves.py).
"""

from collections.abc import Callable

from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.registry.database import touch
from services.registry.lifecycle import (
    JOB_TERMINAL,
    RUN_LIVE,
    InstanceState,
    JobState,
    Stage,
    next_stage,
)
from services.registry.records.events import QUEUES, record_first
from services.registry.records.jobs import find_job
from services.registry.records.sources import find_outputs, find_source
from services.registry.records.turns import join
from services.registry.resolution import fits
from services.registry.schema import InstanceRow, JobRow, RunRow

# What a resumed job takes over as it was resolved.
_KEPT = (
    "owner_id prompt mode height width frames seed evaluations off_distribution prompt_tokens "
    "checkpoint_digest priority pool sampler_id automatic_resumes"
).split()


def resume_job(
    session: Session, owner_id: str, job_id: str, charge: Callable[[JobRow], None]
) -> JobRow:
    """A new job in the queue of the first stage whose output is missing; the owner is held.

    `charge` sees it first and raises if it is too much. NOT_RESUMABLE says why not; JOB_NOT_FOUND.
    """
    old = find_job(session, owner_id, job_id)
    _check_ended(session, old)
    _hold_outputs(session, old)
    job = JobRow(
        job_id=new_id("job"),
        resumed_from=old.job_id,
        **{name: getattr(old, name) for name in _KEPT},
    )
    job.stage = _inherit(session, old, job)
    _check_instances(session, job)
    charge(job)
    job.turn_s = join(session, [owner_id])[owner_id]
    record_first(session, job)
    touch(session, QUEUES)
    return job


def _check_ended(session: Session, job: JobRow) -> None:
    if job.state not in JOB_TERMINAL:
        raise _not_resumable("the job has not ended: wait for its end, or cancel it first")
    if job.state is JobState.SUCCEEDED:
        raise _not_resumable("the job SUCCEEDED: there is nothing to resume")
    live = select(RunRow).where(col(RunRow.job_id) == job.job_id, col(RunRow.state).in_(RUN_LIVE))
    run = session.exec(live).first()
    if run is not None:
        words = f"a run of the job on {run.instance_id} is in doubt: wait until it is settled"
        raise _not_resumable(words)


def _hold_outputs(session: Session, job: JobRow) -> None:
    """Nobody gives an output up while it is being inherited (see records/heirs.py)."""
    runs = [run for stage in Stage for run in find_outputs(session, job, stage)]
    ids = sorted(run.run_id for run in runs)
    query = select(RunRow).where(col(RunRow.run_id).in_(ids)).order_by(col(RunRow.run_id))
    session.exec(query.with_for_update().execution_options(populate_existing=True)).all()


def _inherit(session: Session, old: JobRow, job: JobRow) -> Stage:
    """What the new job takes over, and the stage that it starts with."""
    latents = find_source(session, old.job_id, Stage.DECODE)
    if latents is not None and latents.exists:
        job.inherited_sample = latents.run.run_id
        # Of where the latents came from, whether or not it is still there.
        encodes = find_outputs(session, session.get_one(JobRow, latents.run.job_id), Stage.ENCODE)
        job.inherited_encode = encodes[0].run_id if encodes else None
        return Stage.DECODE
    conditioning = find_source(session, old.job_id, Stage.SAMPLE)
    if conditioning is not None and conditioning.exists:
        job.inherited_encode = conditioning.run.run_id
        return Stage.SAMPLE
    return Stage.ENCODE


def _check_instances(session: Session, job: JobRow) -> None:
    """For every stage that is left there is an instance that could do it, though it be away."""
    present = select(InstanceRow).where(col(InstanceRow.state) != InstanceState.GONE)
    instances = session.exec(present).all()
    stage = job.stage
    while stage is not None:
        of_stage = [one for one in instances if one.stage is stage]
        able = [
            one
            for one in of_stage
            if fits(stage_pb2.Capabilities.FromString(one.capabilities), job)
        ]
        if of_stage and not able:
            raise _not_resumable(
                f"no instance for {stage} has the checkpoint and the limits that the job was "
                "made for any more"
            )
        stage = next_stage(stage)


def _not_resumable(words: str) -> MeshError:
    return MeshError(Reason.NOT_RESUMABLE, words)
