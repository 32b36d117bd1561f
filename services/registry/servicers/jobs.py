"""JobService: decode, call, encode."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from sqlmodel import Session

from reelmesh.v1 import jobs_pb2, jobs_pb2_grpc, transfer_pb2
from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import caller
from services.common.rpc.interceptors import Context
from services.registry.admission import Admission
from services.registry.database import Database
from services.registry.lifecycle import JOB_TERMINAL
from services.registry.messages import FPS, job_state_of
from services.registry.records import jobs, owners, pages, requests
from services.registry.records.events import owner_revision, read_events
from services.registry.records.queues import describe_job
from services.registry.resolution import draw_seed
from services.registry.servicers.refusals import not_yet
from services.registry.signals import Signals, wait

# A watch looks at least this often: a place in the queue changes without an event of the job.
_LOOK_S = 1.0
# A consumer that is further behind than this many events is skipped ahead.
_REPLAY = 128


class JobServicer(jobs_pb2_grpc.JobServiceServicer):
    """Jobs of the caller, who is an owner."""

    def __init__(
        self, database: Database, admission: Admission, signals: Signals, bookmark_s: float
    ) -> None:
        self._database = database
        self._admission = admission
        self._signals = signals
        self._bookmark_s = bookmark_s

    async def CreateJob(
        self, request: jobs_pb2.CreateJobRequest, context: Context
    ) -> jobs_pb2.CreateJobResponse:
        """Queue a job."""
        owner_id, request_id = caller().owner_id, request.request_id
        requests.check_request_id(request_id)

        def find(session: Session) -> jobs_pb2.CreateJobResponse | None:
            answer = jobs_pb2.CreateJobResponse()
            return requests.find_answer(session, owner_id, "CreateJob", request_id, request, answer)

        if request_id and (known := await self._database.read(find)) is not None:
            return known
        admitted = await self._admission.admit(request.spec)
        given = admitted.resolution.seed
        seed = draw_seed() if given is None else given

        def create(session: Session) -> jobs_pb2.CreateJobResponse:
            owners.lock_owner(session, owner_id)
            if (known := find(session)) is not None:
                return known
            job = jobs.create_job(
                session, owner_id, admitted.resolution, seed, admitted.prompt_tokens
            )
            answer = jobs_pb2.CreateJobResponse(job=describe_job(session, job))
            requests.keep_answer(session, owner_id, "CreateJob", request_id, request, answer)
            return answer

        made = await self._database.write(create)
        telemetry.bind(job_id=made.job.job_id)
        return made

    async def ValidateJob(
        self, request: jobs_pb2.ValidateJobRequest, context: Context
    ) -> jobs_pb2.ValidateJobResponse:
        """What CreateJob would make of it."""
        admitted = await self._admission.admit(request.spec)
        resolution = admitted.resolution
        clip = transfer_pb2.Clip(
            mode=f"MODE_{resolution.mode}",
            height=resolution.height,
            width=resolution.width,
            frames=resolution.frames,
        )
        spec = jobs_pb2.ResolvedSpec(
            prompt=resolution.prompt,
            clip=clip,
            seed=resolution.seed or 0,
            evaluations=resolution.evaluations,
            inference_steps=resolution.evaluations + 1,
            fps=FPS,
            off_distribution=resolution.off_distribution,
            prompt_tokens=admitted.prompt_tokens,
            duration_s=resolution.frames / FPS,
            checkpoint_digest=resolution.checkpoint_digest,
        )
        return jobs_pb2.ValidateJobResponse(spec=spec)

    async def GetJob(
        self, request: jobs_pb2.GetJobRequest, context: Context
    ) -> jobs_pb2.GetJobResponse:
        """One job."""
        owner_id = caller().owner_id
        job = await self._database.read(
            lambda session: describe_job(session, jobs.find_job(session, owner_id, request.job_id))
        )
        telemetry.bind(job_id=job.job_id)
        return jobs_pb2.GetJobResponse(job=job)

    async def ListJobs(
        self, request: jobs_pb2.ListJobsRequest, context: Context
    ) -> jobs_pb2.ListJobsResponse:
        """A page of jobs."""
        owner_id, size = caller().owner_id, pages.page_size(request.page_size)
        states = {state for value in request.states if (state := job_state_of(value))}
        if len(states) != len(set(request.states)):
            raise MeshError(Reason.INVALID_FIELD, "there is no such state", field="states")
        scope = f"jobs {owner_id} {sorted(states)}"
        after = pages.read_token(request.page_token, scope)

        def read(session: Session) -> jobs_pb2.ListJobsResponse:
            rows = jobs.list_jobs(session, owner_id, states, after, size + 1)
            page = [describe_job(session, row) for row in rows[:size]]
            token = ""
            if len(rows) > size:
                last = rows[size - 1]
                token = pages.make_token(pages.Place(last.create_time, last.job_id), scope)
            return jobs_pb2.ListJobsResponse(jobs=page, next_page_token=token)

        return await self._database.read(read)

    async def WatchJob(
        self, request: jobs_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        """The job at every change, until it has ended."""
        owner_id, job_id = caller().owner_id, request.job_id
        if request.start_revision < 0:
            words = "revisions begin at 1; 0 is the job as it is now"
            raise MeshError(Reason.INVALID_FIELD, words, field="start_revision")
        after = request.start_revision - 1 if request.start_revision else None
        told = jobs_pb2.Job()
        spoke = time.monotonic()
        with self._signals.listening(job_id) as news:
            while True:
                news.clear()
                look = await self._database.read(
                    partial(_look, owner_id=owner_id, job_id=job_id, after=after)
                )
                telemetry.bind(job_id=look.jobs[-1].job_id)
                for job in look.jobs:
                    if job != told:
                        yield jobs_pb2.WatchJobResponse(job=job)
                        told, spoke = job, time.monotonic()
                after = look.jobs[-1].revision
                if look.ended:
                    return
                draining = self._signals.draining
                if draining or time.monotonic() - spoke >= self._bookmark_s:
                    bookmark = jobs_pb2.Bookmark(revision=max(look.revision, after))
                    yield jobs_pb2.WatchJobResponse(bookmark=bookmark)
                    spoke = time.monotonic()
                if draining:
                    raise MeshError(Reason.DRAINING, "the registry is stopping; watch again soon")
                await wait(news, min(_LOOK_S, self._bookmark_s))

    async def CancelJob(
        self, request: jobs_pb2.CancelJobRequest, context: Context
    ) -> jobs_pb2.CancelJobResponse:
        """Ask the job to stop."""
        owner_id = caller().owner_id
        job = await self._database.write(
            lambda session: describe_job(
                session, jobs.request_cancel(session, owner_id, request.job_id)
            )
        )
        telemetry.bind(job_id=job.job_id)
        return jobs_pb2.CancelJobResponse(job=job)

    async def WatchJobs(
        self, request: jobs_pb2.WatchJobsRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.WatchJobsResponse]:
        """Not yet."""
        raise not_yet("WatchJobs", "watch each job with WatchJob")
        yield

    async def ResumeJob(
        self, request: jobs_pb2.ResumeJobRequest, context: Context
    ) -> jobs_pb2.ResumeJobResponse:
        """Not yet."""
        raise not_yet("ResumeJob", "make the job again with CreateJob and the same seed")

    async def GetReceipt(
        self, request: jobs_pb2.GetReceiptRequest, context: Context
    ) -> jobs_pb2.GetReceiptResponse:
        """Not yet."""
        raise not_yet("GetReceipt", "read the attempts in GetJob")


@dataclass(frozen=True)
class _Look:
    """What a watch has to tell now: the job after each change, the last as it is now."""

    jobs: list[jobs_pb2.Job]
    ended: bool
    # The owner's newest revision: nothing of the job is missing up to here.
    revision: int


def _look(session: Session, owner_id: str, job_id: str, after: int | None) -> _Look:
    job = jobs.find_job(session, owner_id, job_id)
    now = describe_job(session, job)
    past: list[jobs_pb2.Job] = []
    if after is not None:
        past = read_events(session, job, after, _REPLAY + 1)
        # The newest event is the job as it is now; of too many only that one is told.
        past = past[:-1] if len(past) <= _REPLAY else []
    revision = owner_revision(session, owner_id)
    return _Look([*past, now], job.state in JOB_TERMINAL, revision)
