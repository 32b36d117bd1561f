"""Drain: nothing new, what runs finishes, bundles stay until nobody needs them, then it may go."""

import pytest

from reelmesh.v1 import instances_pb2, jobs_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from tests.registry.mesh import Client, Mesh, until
from tests.registry.stages import FakeStage
from tests.registry.test_instances import states
from tests.registry.test_resume import DECODER, SAMPLER, counts

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED
DRAINING = stage_pb2.INSTANCE_STATE_DRAINING
ENCODER = stage_pb2.STAGE_ENCODE


async def drain(client: Client, instance_id: str) -> stage_pb2.Instance:
    """No new runs."""
    request = instances_pb2.DrainRequest(instance_id=instance_id)
    answer: instances_pb2.DrainResponse = await client.call(client.instances.Drain, request)
    return answer.instance


async def released(stage: FakeStage) -> None:
    """Until it may exit."""

    async def is_released() -> bool:
        return stage.released

    await until(is_released)


async def heard(stage: FakeStage) -> None:
    """Until it was told to drain."""

    async def is_draining() -> bool:
        return stage.draining

    await until(is_draining)


async def test_a_draining_instance_finishes_its_run_and_gets_no_other(mesh: Mesh) -> None:
    """The next job goes elsewhere; it is let go when its run has ended."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    first = await client.create()
    await client.until(first.job_id, lambda one: bool(sampler.journal.begun))
    instance = await drain(client, "sampler-0")
    assert (instance.state, instance.drain_requested) == (DRAINING, True)
    assert list(instance.run_ids) == sampler.journal.begun
    await heard(sampler)
    second = await client.create("a second boat")
    other = await mesh.add(SAMPLER, "sampler-1")
    assert (await client.ended(second.job_id)).state == SUCCEEDED
    assert not sampler.released
    await sampler.release()
    assert (await client.ended(first.job_id)).state == SUCCEEDED
    await released(sampler)
    assert counts(sampler, other) == [1, 1]


async def test_nothing_is_bound_before_the_instance_has_heard_of_its_drain(mesh: Mesh) -> None:
    """A heartbeat that was on its way and says that it serves changes nothing."""
    sampler = await mesh.add(SAMPLER, "sampler-0")
    await drain(mesh.local, "sampler-0")
    seen = []
    for _ in range(10):
        seen.append((await states(mesh))["sampler-0"])
    assert set(seen) == {DRAINING}
    await released(sampler)
    assert (await states(mesh))["sampler-0"] == DRAINING


async def test_latents_are_copied_before_their_sampler_goes(mesh: Mesh) -> None:
    """And the decoder reads the copy, though the sampler is not there any more."""
    await mesh.add(ENCODER, "encoder-0")
    sampler = await mesh.add(SAMPLER, "sampler-0")
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: one.stage == DECODER)
    await drain(mesh.local, "sampler-0")
    await released(sampler)
    await sampler.crash()
    await mesh.add(DECODER, "decoder-0")
    assert (await mesh.local.ended(job.job_id)).state == SUCCEEDED
    assert counts(sampler) == [1]


async def test_conditioning_is_copied_before_its_encoder_goes(mesh: Mesh) -> None:
    """Though no sampler is free for a long time yet."""
    encoder, sampler, _ = await mesh.add_all()
    sampler.refuse = True
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: one.stage == SAMPLER)
    await drain(mesh.local, "encoder-0")
    await released(encoder)
    await encoder.crash()
    sampler.refuse = False
    assert (await mesh.local.ended(job.job_id)).state == SUCCEEDED
    assert counts(encoder) == [1]


async def test_a_consumer_that_still_reads_keeps_its_producer(mesh: Mesh) -> None:
    """The decoder was sent to the sampler for its latents before the copy was there."""
    _, sampler, decoder = await mesh.add_all()
    await decoder.hold()  # it says nothing yet: it may still be reading
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(decoder.journal.begun))
    await drain(mesh.local, "sampler-0")
    await heard(sampler)
    beats = sampler.beats
    await until(lambda: _beats(sampler, beats + 5))
    assert not sampler.released
    await decoder.release()
    assert (await mesh.local.ended(job.job_id)).state == SUCCEEDED
    await released(sampler)


async def test_the_next_start_takes_runs_again_and_the_same_one_does_not(mesh: Mesh) -> None:
    """A drain ends with the process that it was asked of."""
    _, sampler, _ = await mesh.add_all()
    await drain(mesh.local, "sampler-0")
    await released(sampler)
    sampler.generation = 0  # it registers again, as after a registry that did not know it

    async def again() -> bool:
        return sampler.generation > 0

    await until(again)
    assert sampler.generation == 1
    assert (await states(mesh))["sampler-0"] == DRAINING
    await sampler.crash()
    back = await mesh.replace(sampler)
    job = await mesh.local.create()
    assert (await mesh.local.ended(job.job_id)).state == SUCCEEDED
    assert back.generation == 2


async def test_a_drain_outlives_the_registry(mesh: Mesh) -> None:
    """It is in the database, not in the conversation."""
    sampler = await mesh.add(SAMPLER, "sampler-0")
    sampler.beating = False
    await drain(mesh.local, "sampler-0")
    await mesh.restart()
    sampler.beating = True
    await released(sampler)


async def test_what_is_not_there_cannot_be_drained(mesh: Mesh) -> None:
    """INSTANCE_NOT_FOUND; and only an admin may ask."""
    await mesh.add(SAMPLER, "sampler-0")
    stranger = await mesh.owner("stranger")
    for client, name, reason in (
        (mesh.local, "nobody", Reason.INSTANCE_NOT_FOUND),
        (mesh.local, "\0", Reason.INSTANCE_NOT_FOUND),
        (stranger, "sampler-0", Reason.NOT_ADMIN),
    ):
        with pytest.raises(MeshError) as refused:
            await drain(client, name)
        assert refused.value.reason is reason


async def _beats(stage: FakeStage, count: int) -> bool:
    return stage.beats >= count
