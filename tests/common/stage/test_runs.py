"""Runs of a stage over real gRPC: taken once, told truly, stopped, and settled after a crash."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelmesh.v1 import sampler_pb2, sampler_pb2_grpc, stage_pb2, stage_pb2_grpc, transfer_pb2
from services.common.ids import new_id
from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.common.stage.book import Book
from services.common.stage.journal import Journal
from services.common.work import EngineError
from tests.common.stage.harness import CLIP, Stage

State = stage_pb2.RunState


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A sampler with a scripted engine."""
    started = await Stage(tmp_path).start()
    yield started
    await started.stop()


async def start(
    stage: Stage, request: sampler_pb2.StartSampleRequest, role: Role = Role.REGISTRY
) -> stage_pb2.Run:
    peer = stage.peer(role)
    async with calling():
        answer = await sampler_pb2_grpc.SamplerServiceStub(peer.channel).StartSample(
            request, metadata=peer.metadata(), timeout=10
        )
    run: stage_pb2.Run = answer.run
    return run


async def ask(stage: Stage, method: str, request: Any, role: Role = Role.REGISTRY) -> Any:
    peer = stage.peer(role)
    async with calling():
        call = getattr(stage_pb2_grpc.RunServiceStub(peer.channel), method)
        return await call(request, metadata=peer.metadata(), timeout=10)


async def watch(stage: Stage, run_id: str, role: Role = Role.REGISTRY) -> list[stage_pb2.Run]:
    peer = stage.peer(role)
    stub = stage_pb2_grpc.RunServiceStub(peer.channel)
    async with calling():
        stream = stub.WatchRun(
            stage_pb2.WatchRunRequest(run_id=run_id), metadata=peer.metadata(), timeout=20
        )
        return [answer.run async for answer in stream]


async def refusal(awaitable: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await awaitable
    return caught.value


async def test_same_start_twice_runs_once(stage: Stage) -> None:
    """A repeated start returns the run that is there, also after it has ended."""
    request = stage.request()
    answers = await asyncio.gather(*(start(stage, request) for _ in range(5)))
    assert {answer.run_id for answer in answers} == {request.run.run_id}
    last = (await watch(stage, request.run.run_id))[-1]
    assert last.state == State.RUN_STATE_SUCCEEDED
    assert (await start(stage, request)).state == State.RUN_STATE_SUCCEEDED
    assert len(stage.engine.orders) == 1


async def test_another_body_under_a_used_run_id_is_refused(stage: Stage) -> None:
    """A run id stands for one request."""
    request = stage.request()
    await start(stage, request)
    request.seed = 8
    error = await refusal(start(stage, request))
    assert (error.reason, error.field) == (Reason.RUN_ID_REUSED, "run.run_id")


async def test_run_without_a_free_slot_is_refused_for_ever(stage: Stage) -> None:
    """REFUSED is written down: the same start never runs later, when the slot is free."""
    stage.engine.go.clear()
    first, second = stage.request(), stage.request()
    await start(stage, first)
    refused = await start(stage, second)
    assert (refused.state, refused.failure.reason) == (State.RUN_STATE_REFUSED, Reason.BUSY)
    stage.engine.go.set()
    await watch(stage, first.run.run_id)
    assert (await start(stage, second)).state == State.RUN_STATE_REFUSED
    assert len(stage.engine.orders) == 1


async def test_drained_stage_finishes_its_run_and_refuses_every_other(stage: Stage) -> None:
    """DRAINING is written down; repeats still find their run, and outputs stay where they are."""
    stage.engine.go.clear()
    first, second = stage.request(), stage.request()
    await start(stage, first)
    stage.runs.drain()
    refused = await start(stage, second)
    assert (refused.state, refused.failure.reason) == (State.RUN_STATE_REFUSED, Reason.DRAINING)
    assert (await start(stage, first)).run_id == first.run.run_id
    stage.engine.go.set()
    ended = (await watch(stage, first.run.run_id))[-1]
    assert ended.state == State.RUN_STATE_SUCCEEDED
    assert stage.store.find(ended.output.bundle_id) is not None


async def test_run_that_the_disk_has_no_room_for_is_refused(tmp_path: Path) -> None:
    """A start reserves what its output needs, or says DISK_FULL before any work."""
    free = [1 << 40]
    stage = await Stage(tmp_path, free=lambda _: free[0]).start()
    request = stage.request()
    free[0] = 1000
    refused = await start(stage, request)
    assert (refused.state, refused.failure.reason) == (State.RUN_STATE_REFUSED, Reason.DISK_FULL)
    await stage.stop()


async def test_tombstone_keeps_a_late_start_out(stage: Stage) -> None:
    """Cancelling a run that was never seen makes its later start STALE_RUN, for ever."""
    request = stage.request()
    buried = await ask(stage, "CancelRun", stage_pb2.CancelRunRequest(run_id=request.run.run_id))
    assert buried.run.state == State.RUN_STATE_CANCELLED
    assert (await refusal(start(stage, request))).reason == Reason.STALE_RUN
    assert stage.engine.orders == []


@pytest.mark.parametrize(
    "spec", [stage_pb2.RunSpec(generation=3), stage_pb2.RunSpec(journal_id=new_id("jrn"))]
)
async def test_binding_to_another_start_or_journal_is_stale(
    stage: Stage, spec: stage_pb2.RunSpec
) -> None:
    """A start that was meant for another generation or journal is refused."""
    assert (await refusal(start(stage, stage.request(run=spec)))).reason == Reason.STALE_RUN


async def test_tombstone_meant_for_another_journal_is_not_written(stage: Stage) -> None:
    """A tombstone in the wrong journal would prove nothing."""
    request = stage_pb2.CancelRunRequest(run_id=new_id("run"), journal_id=new_id("jrn"))
    assert (await refusal(ask(stage, "CancelRun", request))).reason == Reason.STALE_RUN
    missing = await refusal(ask(stage, "GetRun", stage_pb2.GetRunRequest(run_id=request.run_id)))
    assert missing.reason == Reason.RUN_NOT_FOUND
    assert missing.info["journal_id"] == stage.journal.journal_id


async def test_cancel_stops_the_run_and_leaves_nothing(stage: Stage) -> None:
    """CANCELLED is told when the engine has stopped; no bundle and no draft stay."""
    stage.engine.go.clear()
    request = stage.request()
    await start(stage, request)
    before = len(stage.store.list())
    await ask(stage, "CancelRun", stage_pb2.CancelRunRequest(run_id=request.run.run_id))
    last = (await watch(stage, request.run.run_id))[-1]
    assert last.state == State.RUN_STATE_CANCELLED
    assert len(stage.store.list()) == before
    assert not list((Path(stage.store.draft()).parent).iterdir())
    again = await start(stage, stage.request())
    assert again.state in (State.RUN_STATE_ACCEPTED, State.RUN_STATE_RUNNING)


async def test_failure_keeps_the_workers_words_and_the_next_run_succeeds(stage: Stage) -> None:
    """The reason and the end of the worker's own message are told; the slot is free again."""
    stage.engine.error = EngineError("OUT_OF_MEMORY", "x" * 9000 + "tried to allocate 1.06 GiB")
    request = stage.request()
    await start(stage, request)
    failure = (await watch(stage, request.run.run_id))[-1].failure
    assert failure.reason == Reason.OUT_OF_MEMORY
    assert failure.message.endswith("tried to allocate 1.06 GiB")
    assert len(failure.message) == 4000
    stage.engine.error = None
    after = stage.request()
    await start(stage, after)
    assert (await watch(stage, after.run.run_id))[-1].state == State.RUN_STATE_SUCCEEDED


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_output_that_is_not_finite_fails_the_run(stage: Stage, value: float) -> None:
    """NaN and Inf never become a bundle."""
    stage.engine.latents[0, 3, 2, 1, 0] = value
    request = stage.request()
    await start(stage, request)
    last = (await watch(stage, request.run.run_id))[-1]
    assert (last.state, last.failure.reason) == (State.RUN_STATE_FAILED, Reason.NON_FINITE)
    assert not last.output.bundle_id


async def test_watch_and_get_tell_the_same_and_progress_is_seen(stage: Stage) -> None:
    """A watch begins with the run as it is, shows progress, and ends with what GetRun says."""
    stage.engine.go.clear()
    request = stage.request()
    await start(stage, request)
    watching = asyncio.create_task(watch(stage, request.run.run_id))
    async with asyncio.timeout(10):
        while True:
            now = await ask(stage, "GetRun", stage_pb2.GetRunRequest(run_id=request.run.run_id))
            if now.run.progress.phase == "evaluate":
                break
    assert (now.run.progress.done, now.run.progress.total) == (1, 4)
    stage.engine.go.set()
    seen = await watching
    final = await ask(stage, "GetRun", stage_pb2.GetRunRequest(run_id=request.run.run_id))
    assert seen[-1] == final.run
    assert {timing.phase for timing in final.run.timings} == {"pull", "evaluate", "commit"}
    assert final.journal_id == stage.journal.journal_id


async def test_read_token_is_for_registry_and_operator_only(stage: Stage) -> None:
    """Another stage that learns of a run does not learn how to open its output."""
    request = stage.request()
    await start(stage, request)
    told = {
        role: (await watch(stage, request.run.run_id, role))[-1].output.read_token
        for role in (Role.REGISTRY, Role.OPERATOR, Role.STAGE)
    }
    assert told[Role.REGISTRY] == told[Role.OPERATOR] != ""
    assert told[Role.STAGE] == ""
    assert told[Role.REGISTRY] not in (stage.journal._path).read_text()


async def test_wrong_token_is_unauthenticated(stage: Stage) -> None:
    """Nothing is looked up for a caller that is not known."""
    peer = stage.peer()
    peer._token = "rmt_guess"
    stub = stage_pb2_grpc.RunServiceStub(peer.channel)

    async def call() -> None:
        async with calling():
            await stub.GetRun(
                stage_pb2.GetRunRequest(run_id=new_id("run")), metadata=peer.metadata()
            )

    assert (await refusal(call())).reason == Reason.UNAUTHENTICATED


async def test_input_is_pulled_from_its_producer_and_the_copy_deleted(
    stage: Stage, tmp_path: Path
) -> None:
    """The consumer pulls the bundle, works on the same bytes, and keeps no copy."""
    producer = await Stage(tmp_path, "sampler-2").start()
    ref = producer.conditioning()
    ref.instance_id, ref.endpoint = "sampler-2", producer.instance.endpoint
    request = stage.request()
    request.conditioning.CopyFrom(ref)
    before = len(stage.store.list())
    await start(stage, request)
    assert (await watch(stage, request.run.run_id))[-1].state == State.RUN_STATE_SUCCEEDED
    assert stage.engine.seen == [producer.store.path(ref.bundle_id).read_bytes()]
    assert len(stage.store.list()) == before + 1
    await producer.stop()


async def test_endpoint_is_honoured_only_from_the_registry(stage: Stage) -> None:
    """No other caller can make the service call an address of its choice."""
    request = stage.request()
    request.conditioning.instance_id = "elsewhere"
    request.conditioning.endpoint = "127.0.0.1:1"
    error = await refusal(start(stage, request, Role.OPERATOR))
    assert error.field == "conditioning.endpoint"
    request.conditioning.endpoint = ""
    error = await refusal(start(stage, request, Role.OPERATOR))
    assert error.field == "conditioning.instance_id"


async def test_input_that_is_away_fails_the_run(stage: Stage) -> None:
    """A producer that cannot be reached is a failure with its reason, never a hang."""
    request = stage.request()
    request.conditioning.instance_id = "elsewhere"
    request.conditioning.endpoint = "127.0.0.1:1"
    await start(stage, request)
    last = (await watch(stage, request.run.run_id))[-1]
    assert (last.state, last.failure.reason) == (State.RUN_STATE_FAILED, Reason.UNREACHABLE)


async def test_input_of_another_clip_is_refused(stage: Stage) -> None:
    """Conditioning for one canvas never makes a video of another."""
    other = transfer_pb2.Clip(mode=CLIP.mode, height=96, width=64, frames=124)
    request = stage.request()
    request.conditioning.CopyFrom(stage.conditioning(other))
    await start(stage, request)
    last = (await watch(stage, request.run.run_id))[-1]
    assert (last.state, last.failure.reason) == (State.RUN_STATE_FAILED, Reason.INPUT_MISMATCH)
    assert stage.engine.orders == []


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"run": stage_pb2.RunSpec(run_id="run_1")}, Reason.BAD_ID, "run.run_id"),
        ({"evaluations": 999}, Reason.EVALUATIONS_OUT_OF_RANGE, "evaluations"),
        (
            {"clip": transfer_pb2.Clip(mode=transfer_pb2.MODE_REF2VA)},
            Reason.UNSUPPORTED_MODE,
            "clip.mode",
        ),
        ({"clip": transfer_pb2.Clip(width=72)}, Reason.CANVAS_OFF_GRID, "clip.width"),
        ({"clip": transfer_pb2.Clip(height=99, width=72)}, Reason.CANVAS_OFF_GRID, "clip"),
        ({"clip": transfer_pb2.Clip(height=32)}, Reason.CANVAS_OUT_OF_RANGE, "clip.height"),
        ({"clip": transfer_pb2.Clip(height=8192, width=8192)}, Reason.CANVAS_OUT_OF_RANGE, "clip"),
        ({"clip": transfer_pb2.Clip(frames=125)}, Reason.FRAMES_OUT_OF_RANGE, "clip.frames"),
        ({"clip": transfer_pb2.Clip(frames=362)}, Reason.FRAMES_OUT_OF_RANGE, "clip.frames"),
    ],
)
async def test_start_that_cannot_run_names_its_field(
    stage: Stage, change: dict[str, object], reason: Reason, field: str
) -> None:
    """A stage that is called alone refuses what the registry would refuse."""
    error = await refusal(start(stage, stage.request(**change)))
    assert (error.reason, error.field) == (reason, field)
    assert stage.book.newest() == []


async def test_runs_are_listed_page_by_page_newest_first(stage: Stage) -> None:
    """All runs come, each once; a negative size and a strange token are refused."""
    made = []
    for _ in range(3):
        request = stage.request()
        await start(stage, request)
        await watch(stage, request.run.run_id)
        made.append(request.run.run_id)
    seen, token = [], ""
    while True:
        page = await ask(
            stage, "ListRuns", stage_pb2.ListRunsRequest(page_size=2, page_token=token)
        )
        seen += [run.run_id for run in page.runs]
        token = page.next_page_token
        if not token:
            break
    assert seen == made[::-1]
    negative = await refusal(ask(stage, "ListRuns", stage_pb2.ListRunsRequest(page_size=-1)))
    assert negative.field == "page_size"
    strange = await refusal(ask(stage, "ListRuns", stage_pb2.ListRunsRequest(page_token="é!")))
    assert strange.reason == Reason.BAD_PAGE_TOKEN


async def test_journal_is_settled_after_a_crash(tmp_path: Path) -> None:
    """A committed bundle means SUCCEEDED; an accepted run without one FAILED INTERRUPTED."""
    crashed = await Stage(tmp_path).start()
    crashed.engine.go.clear()
    request = crashed.request()
    await start(crashed, request)
    run_id = request.run.run_id
    async for entry in crashed.book.watch(run_id):
        if entry.run.state == State.RUN_STATE_RUNNING:
            break
    bundle_id = crashed.book.get(run_id).bundle_id
    content = (tmp_path / "sampler-1" / "journal.jsonl").read_bytes()
    await crashed.stop()

    def settled(committed: bool) -> stage_pb2.Run:
        journal = Journal(tmp_path / "sampler-1")
        book = Book(journal, "sampler-1")
        book.settle(journal.open(), lambda bundle: bundle == bundle_id and committed)
        journal.close()
        return book.get(run_id).run

    for committed, state, reason in (
        (True, State.RUN_STATE_SUCCEEDED, ""),
        (False, State.RUN_STATE_FAILED, Reason.INTERRUPTED),
    ):
        (tmp_path / "sampler-1" / "journal.jsonl").write_bytes(content)
        run = settled(committed)
        assert (run.state, run.failure.reason) == (state, reason)


async def test_clean_stop_ends_a_run_as_interrupted(stage: Stage) -> None:
    """Stopping the service is not the user's cancel: the run is FAILED INTERRUPTED, resumable."""
    stage.engine.go.clear()
    request = stage.request()
    await start(stage, request)
    await stage.runs.stop(5)
    run = stage.book.get(request.run.run_id).run
    assert (run.state, run.failure.reason) == (State.RUN_STATE_FAILED, Reason.INTERRUPTED)
    assert run.failure.resumable
    refused = await start(stage, stage.request())
    assert refused.failure.reason == Reason.DRAINING
