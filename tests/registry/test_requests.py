"""CreateJob at the door: refusals over the wire, repeats, lists and their pages."""

import asyncio
from typing import Any

import pytest

from reelmesh.v1 import encoder_pb2, jobs_pb2, owners_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from tests.registry.mesh import Mesh


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"prompt": ""}, Reason.PROMPT_EMPTY, "spec.prompt"),
        ({"prompt": "a\0b"}, Reason.INVALID_FIELD, "spec.prompt"),
        ({"prompt": "word " * 21}, Reason.PROMPT_TOO_LONG, "spec.prompt"),
        ({"prompt": "x" * 100_000}, Reason.PROMPT_TOO_LONG, "spec.prompt"),
        ({"frames": 10}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames"),
        ({"fps": 25}, Reason.FPS_UNSUPPORTED, "spec.fps"),
        (
            {"canvas": jobs_pb2.Canvas(height=128, width=500)},
            Reason.CANVAS_OFF_GRID,
            "spec.canvas.width",
        ),
        ({"evaluations": 0}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations"),
        ({"mode": 3}, Reason.UNSUPPORTED_MODE, "spec.mode"),
        ({"references": [encoder_pb2.Reference()]}, Reason.NOT_IMPLEMENTED, "spec.references"),
    ],
)
async def test_what_cannot_run_takes_no_slot(
    mesh: Mesh, fields: dict[str, Any], reason: Reason, field: str
) -> None:
    """Refused at CreateJob and at ValidateJob alike, while a valid job goes through."""
    encoder, _, _ = await mesh.add_all()
    client = mesh.local
    valid = asyncio.create_task(client.create())
    with pytest.raises(MeshError) as refused:
        await client.create(**fields)
    assert (refused.value.reason, refused.value.field) == (reason, field)
    spec = jobs_pb2.JobSpec(**{"prompt": "a boat", **fields})
    with pytest.raises(MeshError) as refused:
        await client.call(client.jobs.ValidateJob, jobs_pb2.ValidateJobRequest(spec=spec))
    assert (refused.value.reason, refused.value.field) == (reason, field)
    await client.ended((await valid).job_id)
    assert len(encoder.starts) == 1


async def test_without_a_ready_encoder_nothing_is_queued(mesh: Mesh) -> None:
    """UNAVAILABLE NO_ENCODER, and when to try again."""
    client = mesh.local
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-0")
    with pytest.raises(MeshError) as refused:
        await client.create()
    assert refused.value.reason is Reason.NO_ENCODER
    assert refused.value.retry_after_s
    assert not (await client.call(client.jobs.ListJobs, jobs_pb2.ListJobsRequest())).jobs


async def test_a_job_waits_for_a_stage_that_is_not_there_yet(mesh: Mesh) -> None:
    """And says what for."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: one.waiting_for == "a sampler: none is registered")
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-0")
    await mesh.add(stage_pb2.STAGE_DECODE, "decoder-0")
    assert (await client.ended(job.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_validating_makes_nothing_and_draws_no_seed(mesh: Mesh) -> None:
    """What CreateJob would resolve."""
    await mesh.add_all()
    client = mesh.local
    spec = jobs_pb2.JobSpec(prompt="a red boat", frames=125)
    answer = await client.call(client.jobs.ValidateJob, jobs_pb2.ValidateJobRequest(spec=spec))
    assert answer.spec.clip.frames == 141
    assert (answer.spec.seed, answer.spec.prompt_tokens) == (0, 3)
    assert not (await client.call(client.jobs.ListJobs, jobs_pb2.ListJobsRequest())).jobs


async def test_a_repeated_request_is_one_job(mesh: Mesh) -> None:
    """Also when both come at once; another body with the same id is refused."""
    await mesh.add_all()
    client = mesh.local
    made = await asyncio.gather(*(client.create(request_id="one") for _ in range(5)))
    assert len({job.job_id for job in made}) == 1
    assert all(job == made[0] for job in made)
    await client.ended(made[0].job_id)
    assert await client.create(request_id="one") == made[0]
    with pytest.raises(MeshError) as refused:
        await client.create("another boat", request_id="one")
    assert refused.value.reason is Reason.REQUEST_ID_REUSED
    assert (await client.create(request_id="two")).job_id != made[0].job_id
    bob = await mesh.owner("bob")
    assert (await bob.create(request_id="one")).job_id != made[0].job_id


async def test_a_request_id_has_64_characters_at_most(mesh: Mesh) -> None:
    """Refused by its field."""
    with pytest.raises(MeshError) as refused:
        await mesh.local.create(request_id="x" * 65)
    assert refused.value.field == "request_id"


async def test_prompts_are_kept_exactly(mesh: Mesh) -> None:
    """Line ends, joined emoji, direction marks."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    client = mesh.local
    for prompt in ("a\r\nb", "\U0001f469\u200d\U0001f680 dances", "\u200fx", " spaced "):
        job = await client.create(prompt)
        assert (await client.get(job.job_id)).spec.prompt == prompt


async def test_lists_come_in_pages_newest_first(mesh: Mesh) -> None:
    """Every job once; a token is bound to its list and filter."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    client = mesh.local
    made = [(await client.create(f"boat {number}")).job_id for number in range(5)]
    await client.cancel(made[0])
    found: list[str] = []
    token = ""
    while True:
        request = jobs_pb2.ListJobsRequest(page_size=2, page_token=token)
        page = await client.call(client.jobs.ListJobs, request)
        found += [job.job_id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
        kept = token
    assert found == made[::-1]
    states = [jobs_pb2.JOB_STATE_CANCELLED]
    only = await client.call(client.jobs.ListJobs, jobs_pb2.ListJobsRequest(states=states))
    assert [job.job_id for job in only.jobs] == made[:1]
    for request in (
        jobs_pb2.ListJobsRequest(page_token=kept, states=states),
        jobs_pb2.ListJobsRequest(page_token="nonsense"),
    ):
        with pytest.raises(MeshError) as refused:
            await client.call(client.jobs.ListJobs, request)
        assert refused.value.reason is Reason.BAD_PAGE_TOKEN
    with pytest.raises(MeshError) as refused:
        await client.call(client.jobs.ListJobs, jobs_pb2.ListJobsRequest(page_size=-1))
    assert refused.value.field == "page_size"
    bob = await mesh.owner("bob")
    with pytest.raises(MeshError):
        await bob.call(bob.jobs.ListJobs, jobs_pb2.ListJobsRequest(page_token=kept))


async def test_an_owners_name_is_taken_once(mesh: Mesh) -> None:
    """Lists are by name."""
    admin = mesh.local
    await mesh.owner("bob")
    with pytest.raises(MeshError) as refused:
        await mesh.owner("bob")
    assert refused.value.reason is Reason.OWNER_EXISTS
    listed = await admin.call(admin.owners.ListOwners, owners_pb2.ListOwnersRequest(page_size=1))
    assert [owner.name for owner in listed.owners] == ["bob"]
    rest = await admin.call(
        admin.owners.ListOwners, owners_pb2.ListOwnersRequest(page_token=listed.next_page_token)
    )
    assert [owner.name for owner in rest.owners] == ["local"]
