"""SamplerService over real gRPC: whether a run goes on from another one's snapshot, and says so."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reelmesh.v1 import sampler_pb2, sampler_pb2_grpc, stage_pb2, stage_pb2_grpc
from services.common.ids import new_id
from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.store import utc_now
from services.common.work import EngineError, Watch
from services.sampler.order import SNAPSHOT_REFUSED, SampleOrder
from services.sampler.shelf import Shelf
from tests.common.stage.harness import ScriptedSampler, Stage

DAY_S = 86_400.0


class Resuming(ScriptedSampler):
    """Keeps a snapshot after the first evaluation, and goes on from those that are of its seed."""

    cut_short = False

    def sample(
        self, order: SampleOrder, conditioning: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """As the engine: refused before anything else happens."""
        resumed = {}
        if self.cut_short:
            raise EngineError("WORKER_DIED", "the rank was killed before it wrote anything")
        if order.resume is not None:
            if not order.resume.exists() or order.resume.read_text() != str(order.seed):
                raise EngineError(SNAPSHOT_REFUSED, "another request")
            resumed = {"resume": 0.25}
        if order.snapshot is not None:
            order.snapshot.parent.mkdir(exist_ok=True)
            order.snapshot.write_text(str(order.seed))
        return {**super().sample(order, conditioning, output, watch), **resumed}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "sampler-1" / "snapshots", DAY_S)


@pytest.fixture
def engine() -> Resuming:
    return Resuming()


@pytest.fixture
async def stage(tmp_path: Path, shelf: Shelf, engine: Resuming) -> AsyncIterator[Stage]:
    """A sampler with a scripted engine and a shelf."""
    made = Stage(tmp_path, shelf=shelf)
    made.engine = engine
    started = await made.start()
    yield started
    await started.stop()


async def finish(stage: Stage, **changes: Any) -> stage_pb2.Run:
    """The run of a start, when it has ended."""
    request = stage.request(**changes)
    peer = stage.peer()
    async with calling():
        await sampler_pb2_grpc.SamplerServiceStub(peer.channel).StartSample(
            request, metadata=peer.metadata(), timeout=10
        )
        stream = stage_pb2_grpc.RunServiceStub(peer.channel).WatchRun(
            stage_pb2.WatchRunRequest(run_id=request.run.run_id),
            metadata=peer.metadata(),
            timeout=20,
        )
        runs = [answer.run async for answer in stream]
    last: stage_pb2.Run = runs[-1]
    return last


def phases(run: stage_pb2.Run) -> set[str]:
    return {time.phase for time in run.timings}


async def test_run_goes_on_from_the_one_it_names(stage: Stage) -> None:
    """The named run's snapshot is handed to the engine, and the timings say "resume"."""
    stage.engine.error = EngineError("WORKER_DIED", "the rank was killed")
    failed = await finish(stage)
    assert failed.state == stage_pb2.RUN_STATE_FAILED and failed.failure.resumable
    stage.engine.error = None
    run = await finish(stage, resume_run_id=failed.run_id)
    assert run.state == stage_pb2.RUN_STATE_SUCCEEDED
    assert "resume" in phases(run)
    places = [order.resume and order.resume.stem for order in stage.engine.orders]
    assert places == [None, failed.run_id]


async def test_run_that_was_cut_short_before_its_own_snapshot_can_be_gone_on_from(
    stage: Stage, engine: Resuming
) -> None:
    """What it went on from is its own from the start; and the next one goes on from there."""
    stage.engine.error = EngineError("WORKER_DIED", "the rank was killed")
    first = await finish(stage)
    engine.cut_short = True
    second = await finish(stage, resume_run_id=first.run_id)
    assert second.state == stage_pb2.RUN_STATE_FAILED
    engine.error, engine.cut_short = None, False
    third = await finish(stage, resume_run_id=second.run_id)
    assert third.state == stage_pb2.RUN_STATE_SUCCEEDED
    assert "resume" in phases(third)


async def test_run_without_its_half_begins_at_zero_and_says_so(stage: Stage) -> None:
    """Unknown or of another request: the run succeeds all the same, without a phase "resume"."""
    stage.engine.error = EngineError("WORKER_DIED", "the rank was killed")
    failed = await finish(stage)
    stage.engine.error = None
    for changes in ({"resume_run_id": new_id("run")}, {"resume_run_id": failed.run_id, "seed": 8}):
        run = await finish(stage, **changes)
        assert run.state == stage_pb2.RUN_STATE_SUCCEEDED
        assert "resume" not in phases(run)
        assert stage.engine.orders[-1].resume is None


async def test_what_is_no_run_id_is_refused(stage: Stage) -> None:
    """A path is no id: nothing but runs can be named."""
    with pytest.raises(MeshError) as caught:
        await finish(stage, resume_run_id="../../etc/passwd")
    assert (caught.value.reason, caught.value.field) == (Reason.BAD_ID, "resume_run_id")


async def test_snapshot_goes_when_its_run_has_succeeded(stage: Stage, shelf: Shelf) -> None:
    """A sweep by the journal keeps the failed run's and deletes the succeeded one's."""
    stage.engine.error = EngineError("WORKER_DIED", "the rank was killed")
    failed = await finish(stage)
    stage.engine.error = None
    done = await finish(stage, resume_run_id=failed.run_id)
    assert shelf.place(failed.run_id).exists() and shelf.place(done.run_id).exists()
    shelf.sweep(stage.book.find, utc_now())
    assert shelf.place(failed.run_id).exists() and not shelf.place(done.run_id).exists()


async def test_resumed_start_is_idempotent(stage: Stage) -> None:
    """The run that is named to go on from is part of the request: another one is another start."""
    request = stage.request(resume_run_id=new_id("run"))
    peer = stage.peer()
    stub = sampler_pb2_grpc.SamplerServiceStub(peer.channel)
    async with calling():
        for _ in range(2):
            await stub.StartSample(request, metadata=peer.metadata(), timeout=10)
    other = sampler_pb2.StartSampleRequest()
    other.CopyFrom(request)
    other.resume_run_id = new_id("run")
    with pytest.raises(MeshError) as caught:
        async with calling():
            await stub.StartSample(other, metadata=peer.metadata(), timeout=10)
    assert caught.value.reason == Reason.RUN_ID_REUSED
