"""JobService: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from google.protobuf.message import Message
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
from services.registry.records.queues import describe_job
from services.registry.records.receipts import make_receipt
from services.registry.records.resumes import resume_job
from services.registry.records.submissions import METHOD, Draft
from services.registry.resolution import draw_seed
from services.registry.submitting import Submitting
from services.registry.watching import Watches


class JobServicer(jobs_pb2_grpc.JobServiceServicer):
    """Jobs of the caller, who is an owner."""

    def __init__(
        self,
        database: Database,
        admission: Admission,
        submitting: Submitting,
        watches: Watches,
        idle_s: float,
    ) -> None:
        self._database = database
        self._admission = admission
        self._submitting = submitting
        self._watches = watches
        self._idle_s = idle_s

    async def CreateJob(
        self, request: jobs_pb2.CreateJobRequest, context: Context
    ) -> jobs_pb2.CreateJobResponse:
        """Queue a job."""
        owner_id, request_id = caller().owner_id, request.request_id
        requests.check_request_id(request_id)

        def find(session: Session) -> jobs_pb2.CreateJobResponse | None:
            answer = jobs_pb2.CreateJobResponse()
            return requests.find_answer(session, owner_id, METHOD, request_id, request, answer)

        if request_id and (known := await self._database.read(find)) is not None:
            return known
        admitted = await self._admission.admit(request.spec)
        given = admitted.resolution.seed
        seed = draw_seed() if given is None else given

        draft = Draft(owner_id, admitted.resolution, seed, admitted.prompt_tokens, request)
        made = await self._submitting.submit(draft)
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
            priority=resolution.priority,
            pool=resolution.pool,
            sampler_id=resolution.sampler_id,
            automatic_resumes=resolution.automatic_resumes,
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
        owner_id = caller().owner_id
        async for message in self._watches.of_job(owner_id, request.job_id, request.start_revision):
            await self._tell(context, message)
        nothing: tuple[jobs_pb2.WatchJobResponse, ...] = ()
        for message in nothing:  # the interceptor expects a generator
            yield message

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
        """All jobs of the caller at every change."""
        owner_id = caller().owner_id
        async for message in self._watches.of_owner(owner_id, request.start_revision):
            await self._tell(context, message)
        nothing: tuple[jobs_pb2.WatchJobsResponse, ...] = ()
        for message in nothing:  # the interceptor expects a generator
            yield message

    async def ResumeJob(
        self, request: jobs_pb2.ResumeJobRequest, context: Context
    ) -> jobs_pb2.ResumeJobResponse:
        """Queue a job that redoes only what an ended one lacks."""
        owner_id, request_id = caller().owner_id, request.request_id
        requests.check_request_id(request_id)

        def resume(session: Session) -> jobs_pb2.ResumeJobResponse:
            owner = owners.lock_owner(session, owner_id)
            answer = jobs_pb2.ResumeJobResponse()
            method = "ResumeJob"
            if requests.find_answer(session, owner_id, method, request_id, request, answer):
                return answer
            charge = partial(self._admission.charge, session, owner)
            job = resume_job(session, owner_id, request.job_id, charge)
            answer.job.CopyFrom(describe_job(session, job))
            requests.keep_answer(session, owner_id, method, request_id, request, answer)
            return answer

        made = await self._database.write(resume)
        telemetry.bind(job_id=made.job.job_id)
        return made

    async def GetReceipt(
        self, request: jobs_pb2.GetReceiptRequest, context: Context
    ) -> jobs_pb2.GetReceiptResponse:
        """What made the video of a job that has ended."""
        owner_id = caller().owner_id

        def read(session: Session) -> jobs_pb2.Receipt:
            job = jobs.find_job(session, owner_id, request.job_id)
            if job.state not in JOB_TERMINAL:
                raise MeshError(Reason.JOB_NOT_ENDED, "the job has not ended yet")
            return make_receipt(session, job)

        receipt = await self._database.read(read)
        telemetry.bind(job_id=receipt.job_id)
        return jobs_pb2.GetReceiptResponse(receipt=receipt)

    async def _tell(self, context: Context, message: Message) -> None:
        """Write a message of a watch; a consumer that takes none for too long is cut."""
        try:
            async with asyncio.timeout(self._idle_s):
                await context.write(message)
        except TimeoutError as error:
            words = "the watch's messages were not taken for too long"
            raise MeshError(Reason.STREAM_STALLED, words) from error
