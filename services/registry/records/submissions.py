"""Submits: jobs that owners ask for, many in one transaction, each with a verdict of its own.

What a thousand owners ask for at the same moment is one transaction and not a thousand: every
statement is about all of them. Nobody notices but by the time it takes: each is admitted or refused
as if those before it had been alone, and what is refused leaves nothing behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import insert
from sqlalchemy.sql.schema import ScalarElementColumnDefault
from sqlmodel import Session

from reelmesh.v1 import jobs_pb2
from services.common.ids import new_id
from services.common.rpc.errors import MeshError
from services.registry.columns import moments
from services.registry.database import touch
from services.registry.lifecycle import JobState, Stage
from services.registry.limits import Limits
from services.registry.messages import job_message
from services.registry.records.events import QUEUES, keep_events
from services.registry.records.owners import lock_owners
from services.registry.records.queues import tell_places
from services.registry.records.quotas import Quotas
from services.registry.records.requests import Kept, digest, find_kept, keep_answers, reused
from services.registry.records.revisions import number_all
from services.registry.records.turns import join
from services.registry.resolution import Resolution
from services.registry.schema import JobRow, table_of

METHOD = "CreateJob"
# The answer, or why there is none.
Verdict = jobs_pb2.CreateJobResponse | MeshError

_CREATE = insert(table_of(JobRow))
_NEW: dict[str, Any] = {
    column.name: column.default.arg
    for column in table_of(JobRow).c
    if isinstance(column.default, ScalarElementColumnDefault)
} | {
    "state": JobState.QUEUED,
    "stage": Stage.ENCODE,
    "inherited_encode": None,
    "inherited_sample": None,
    "failure": None,
    "artifact_id": None,
    "resumed_from": None,
    "start_time": None,
    "end_time": None,
}


@dataclass(frozen=True)
class Draft:
    """A job that an owner asks for, resolved. `request` is what a repeat is known by."""

    owner_id: str
    resolution: Resolution
    seed: int
    prompt_tokens: int
    request: jobs_pb2.CreateJobRequest

    @property
    def key(self) -> tuple[str, str]:
        """What a repeat has alike; without a request id nothing is a repeat."""
        return self.owner_id, self.request.request_id


def submit_all(
    session: Session, drafts: Sequence[Draft], limits: Limits
) -> Sequence[Verdict | None]:
    """A verdict for each, in their order; none for those of an owner that somebody else holds.

    Those are to be submitted again, an owner at a time: then it is waited for. QUOTA_EXCEEDED,
    QUEUE_FULL, REQUEST_ID_REUSED.
    """
    owners = lock_owners(session, {draft.owner_id for draft in drafts})
    known = find_kept(session, METHOD, {one.key for one in drafts if one.request.request_id})
    quotas = Quotas(session, limits, owners.values(), [one.resolution for one in drafts])
    verdicts: list[Verdict | None] = [None] * len(drafts)
    admitted: dict[int, Draft] = {}
    # Of those with a request id: the first, and whatever repeats it here.
    firsts: dict[tuple[str, str], int] = {}
    repeats: dict[int, int] = {}
    for index, draft in enumerate(drafts):
        owner = owners.get(draft.owner_id)
        if owner is None:
            continue
        try:
            if (kept := known.get(draft.key)) is not None:
                verdicts[index] = kept.repeat(draft.request, jobs_pb2.CreateJobResponse())
            elif (first := firsts.get(draft.key)) is not None:
                if digest(draft.request) != digest(drafts[first].request):
                    raise reused()
                repeats[index] = first
            else:
                quotas.admit(owner, draft.resolution)
                admitted[index] = draft
                if draft.request.request_id:
                    firsts[draft.key] = index
        except MeshError as error:
            verdicts[index] = error
    answers: dict[tuple[str, str], Kept] = {}
    messages = create_jobs(session, list(admitted.values()))
    for (index, draft), message in zip(admitted.items(), messages, strict=True):
        verdicts[index] = answer = jobs_pb2.CreateJobResponse(job=message)
        if draft.request.request_id:
            answers[draft.key] = Kept(digest(draft.request), answer.SerializeToString())
    keep_answers(session, METHOD, answers)
    for index, first in repeats.items():
        verdicts[index] = verdicts[first]
    return verdicts


def create_jobs(session: Session, drafts: Sequence[Draft]) -> Sequence[jobs_pb2.Job]:
    """A job for each in the queue of its first stage, as it is told; their owners are held."""
    if not drafts:
        return []
    join(session, list(dict.fromkeys(draft.owner_id for draft in drafts)))
    # Read-only rows: an object of the session's for each would take longer than all the rest.
    jobs = [
        cast(JobRow, SimpleNamespace(**_values(draft, time)))
        for draft, time in zip(drafts, moments(len(drafts)), strict=True)
    ]
    for job, revision in zip(jobs, number_all(session, jobs, waiting=True), strict=True):
        job.revision = job.first_revision = revision
    session.connection().execute(_CREATE, [vars(job) for job in jobs])
    told = [(job, job_message(job, [])) for job in jobs]
    keep_events(session, told)
    touch(session, QUEUES)
    tell_places(session, told)
    return [message for _, message in told]


def _values(draft: Draft, create_time: datetime) -> dict[str, Any]:
    wanted = draft.resolution
    return {
        **_NEW,
        "job_id": new_id("job"),
        "owner_id": draft.owner_id,
        "prompt": wanted.prompt,
        "mode": wanted.mode,
        "height": wanted.height,
        "width": wanted.width,
        "frames": wanted.frames,
        "seed": str(draft.seed),
        "evaluations": wanted.evaluations,
        "off_distribution": wanted.off_distribution,
        "prompt_tokens": draft.prompt_tokens,
        "checkpoint_digest": wanted.checkpoint_digest,
        "priority": wanted.priority,
        "pool": wanted.pool,
        "sampler_id": wanted.sampler_id,
        "automatic_resumes": wanted.automatic_resumes,
        "create_time": create_time,
    }
