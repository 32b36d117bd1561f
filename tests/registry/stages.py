"""Stages for the registry's tests: real gRPC servers, bundles and journals; only the engine is a
few lines that write a tiny file. Every fault that the registry must survive has a switch here.
"""

import asyncio
import hashlib
import json
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reelmesh.v1 import (
    decoder_pb2,
    decoder_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    mesh_pb2,
    mesh_pb2_grpc,
    sampler_pb2,
    sampler_pb2_grpc,
    stage_pb2,
    stage_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
)
from services.common.ids import new_id
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.common.rpc.interceptors import Context
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import MeshTokens
from services.common.transfer.gate import StageGate
from services.common.transfer.reader import pull
from services.common.transfer.servicer import TransferServicer
from services.common.transfer.store import BundleStore

State = stage_pb2.RunState
ENDED = (
    State.RUN_STATE_SUCCEEDED,
    State.RUN_STATE_FAILED,
    State.RUN_STATE_CANCELLED,
    State.RUN_STATE_REFUSED,
)
KINDS = {
    stage_pb2.STAGE_ENCODE: transfer_pb2.BUNDLE_KIND_CONDITIONING,
    stage_pb2.STAGE_SAMPLE: transfer_pb2.BUNDLE_KIND_LATENTS,
    stage_pb2.STAGE_DECODE: transfer_pb2.BUNDLE_KIND_VIDEO,
}
LIMITS = {
    "min_frames": 124,
    "max_frames": 345,
    "trained_max_frames": 345,
    "frame_step": 17,
    "frame_base": 5,
    "canvas_multiple": 32,
    "min_edge": 128,
    "max_pixels": 1344 * 768,
    "default_height": 128,
    "default_width": 128,
    "default_frames": 124,
    "default_evaluations": 3,
    "max_evaluations": 100,
    "max_prompt_tokens": 20,
    "max_aspect": 4.0,
}


@dataclass
class Journal:
    """What a stage keeps on its disk: it survives the process, `FakeStage.crash` too."""

    journal_id: str = field(default_factory=lambda: new_id("jrn"))
    runs: dict[str, stage_pb2.Run] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    # Run ids that a worker began, in order: a run in here twice ran twice.
    begun: list[str] = field(default_factory=list)
    # (run id, job id, "begin" or "end") in order, for all stages that share the list.
    diary: list[tuple[str, str, str]] = field(default_factory=list)


class FakeStage:
    """One stage service. `start` serves and registers; switches may be turned at any time."""

    def __init__(
        self,
        stage: stage_pb2.Stage,
        instance_id: str,
        folder: Path,
        tokens: MeshTokens,
        registry: str,
        journal: Journal | None = None,
        **limits: Any,
    ) -> None:
        self.stage = stage
        self.instance_id = instance_id
        self.tokens = tokens
        self.registry = registry
        self.journal = journal or Journal()
        self.store = BundleStore(folder / instance_id)
        self.boot_id = new_id("boot")
        self.generation = 0
        self.endpoint = ""
        self.digest = "d" * 64
        self.limits: dict[str, Any] = {}
        self.slots = 1
        self.pool = str(limits.pop("pool", ""))
        self.limits.update({**LIMITS, **limits})
        # Switches.
        self.step_s = 0.0  # seconds an evaluation takes
        self.may_work = asyncio.Event()  # cleared: work waits
        self.may_work.set()
        self.hold_starts = asyncio.Event()  # cleared: starts are on their way
        self.hold_starts.set()
        self.phase, self.steps = "evaluate", 0  # what it says of its work; 0: as many as asked
        self.lose_start: str = ""  # "before": a start never arrives; "after": only its answer
        self.refuse = False
        self.fail: str = ""  # the reason of every run's failure
        self.delivers = True
        self.beating = True
        self.beats_as_asked = False  # or ten times a second, so that tests need not wait
        self.keeps_channels = False  # or opens one for each pull, as if it had just started
        self.foreign_reports = False
        self.deaf = False  # a cancel is not heard
        self.mute = False  # questions about runs are not answered
        self.loses_output = False
        self.resumable = False  # what a failure says of itself
        # What happened.
        self.draining = self.released = False
        self.beats = self.arrived = 0
        self.starts: Counter[str] = Counter()
        self.halves: dict[str, str] = {}  # run id -> the run that it should go on from
        self.uploads: list[str] = []
        self.delivery_errors: list[Reason] = []
        self._peers: dict[str, Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._began: dict[str, float] = {}
        self._changed = asyncio.Condition()
        self._beat: asyncio.Task[None] | None = None
        self._server: Server | None = None

    # The process.

    async def start(self, port: int = 0) -> None:
        """Settle the journal, serve and register."""
        self.store.open()
        for run in self.journal.runs.values():
            if run.state not in ENDED:
                run.state = State.RUN_STATE_FAILED
                run.failure.reason = Reason.INTERRUPTED
                run.failure.message = "the process died during the run"
        await self.serve(port)

    async def serve(self, port: int = 0) -> None:
        """Serve and stay registered."""
        name, add, servicer = {
            stage_pb2.STAGE_ENCODE: (
                "EncoderService",
                encoder_pb2_grpc.add_EncoderServiceServicer_to_server,
                _Encoder(self),
            ),
            stage_pb2.STAGE_SAMPLE: (
                "SamplerService",
                sampler_pb2_grpc.add_SamplerServiceServicer_to_server,
                _Sampler(self),
            ),
            stage_pb2.STAGE_DECODE: (
                "DecoderService",
                decoder_pb2_grpc.add_DecoderServiceServicer_to_server,
                _Decoder(self),
            ),
        }[self.stage]
        mounts = [
            Mount(f"reelmesh.v1.{name}", add, servicer),
            Mount(
                "reelmesh.v1.RunService",
                stage_pb2_grpc.add_RunServiceServicer_to_server,
                _RunServicer(self),
            ),
            Mount(
                "reelmesh.v1.TransferService",
                transfer_pb2_grpc.add_TransferServiceServicer_to_server,
                TransferServicer(self.store, StageGate(self.store)),
            ),
        ]
        self._server = Server(f"127.0.0.1:{port}", mounts, self.tokens.authenticate)
        await self._server.start()
        self.endpoint = f"127.0.0.1:{self._server.port}"
        self._beat = asyncio.create_task(self._stay_registered())

    async def crash(self) -> None:
        """The process dies: nobody is told, the journal stays."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for peer in self._peers.values():
            await peer.close()
        self._peers.clear()
        if self._server is not None:
            await self._server.stop(0)

    def reborn(self, folder: Path, journal: Journal | None = None) -> "FakeStage":
        """The next start of its process, on its journal or on another."""
        after = FakeStage(
            self.stage,
            self.instance_id,
            folder,
            self.tokens,
            self.registry,
            journal or self.journal,
        )
        after.limits, after.slots = self.limits, self.slots
        return after

    def message(self) -> stage_pb2.Instance:
        """Who it is."""
        capabilities = stage_pb2.Capabilities(
            stage=self.stage,
            modes=[transfer_pb2.MODE_T2VA],
            checkpoint="tiny",
            checkpoint_digest=self.digest,
            limits=stage_pb2.Limits(**self.limits),
            slots=self.slots,
            layout="tp1-ulysses1",
            precision="fp32",
        )
        return stage_pb2.Instance(
            instance_id=self.instance_id,
            endpoint=self.endpoint,
            boot_id=self.boot_id,
            journal_id=self.journal.journal_id,
            capabilities=capabilities,
            version="test",
            pool=self.pool,
        )

    async def move(self, registry: str) -> None:
        """From now on speak to another registry of the same mesh."""
        self.registry = registry
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
        self._beat = asyncio.create_task(self._stay_registered())

    async def _stay_registered(self) -> None:
        peer = Peer(self.registry, self.tokens.of(Role.STAGE))
        try:
            await self._beat_on(peer)
        finally:
            await peer.close()

    async def _beat_on(self, peer: Peer) -> None:
        stub = mesh_pb2_grpc.MeshServiceStub(peer.channel)
        pause_s = 0.1
        while True:
            try:
                async with calling():
                    if not self.generation:
                        request = mesh_pb2.RegisterRequest(instance=self.message())
                        answer = await stub.Register(request, metadata=peer.metadata(), timeout=2)
                        self.generation = answer.generation
                        if self.beats_as_asked:
                            pause_s = answer.heartbeat_interval.ToNanoseconds() / 1e9
                    elif self.beating:
                        beat = mesh_pb2.HeartbeatRequest(
                            instance_id=self.instance_id,
                            generation=self.generation,
                            boot_id=self.boot_id,
                            serving=not self.draining,
                        )
                        told = await stub.Heartbeat(beat, metadata=peer.metadata(), timeout=2)
                        self.beats += 1
                        self.draining = self.draining or told.drain
                        self.released = self.released or told.release
            except MeshError as error:
                if error.reason is Reason.INSTANCE_NOT_FOUND:
                    self.generation = 0
            await asyncio.sleep(pause_s)

    # Runs.

    async def accept(
        self,
        spec: stage_pb2.RunSpec,
        clip: transfer_pb2.Clip,
        source: transfer_pb2.BundleRef | None,
        evaluations: int,
    ) -> stage_pb2.Run:
        """What all starts have in common."""
        self.arrived += 1
        await self.hold_starts.wait()
        self.starts[spec.run_id] += 1
        if self.lose_start == "before":
            raise MeshError(Reason.UNREACHABLE, "the start was lost on its way")
        known = self.journal.runs.get(spec.run_id)
        stale = spec.journal_id not in ("", self.journal.journal_id) or (
            spec.generation not in (0, self.generation)
        )
        if stale or (known is not None and not known.job_id):
            raise MeshError(Reason.STALE_RUN, "tombstoned, or bound to another start")
        if known is None:
            known = stage_pb2.Run(
                run_id=spec.run_id,
                stage=self.stage,
                state=State.RUN_STATE_ACCEPTED,
                job_id=spec.job_id,
                instance_id=self.instance_id,
                generation=self.generation,
            )
            self.journal.runs[spec.run_id] = known
            if self.refuse or self.draining or not await self._has_slot():
                known.state = State.RUN_STATE_REFUSED
                known.failure.reason = Reason.BUSY
            else:
                work = self._work(known, spec, clip, source, evaluations)
                self._tasks[spec.run_id] = asyncio.create_task(work)
        if self.lose_start == "after":
            raise MeshError(Reason.UNREACHABLE, "the answer was lost on its way")
        return known

    async def _has_slot(self) -> bool:
        """As a real stage it waits a moment for one: see docs/decisions/0003."""
        try:
            async with asyncio.timeout(0.5), self._changed:
                await self._changed.wait_for(lambda: self._live() <= self.slots)
        except TimeoutError:
            return False
        return True

    def _live(self) -> int:
        return sum(run.state not in ENDED for run in self.journal.runs.values())

    async def cancel(self, run_id: str, journal_id: str) -> stage_pb2.Run:
        """Stop a run, or bury it."""
        if journal_id not in ("", self.journal.journal_id):
            raise MeshError(Reason.STALE_RUN, "this is another journal")
        run = self.journal.runs.get(run_id)
        if run is None:
            run = stage_pb2.Run(
                run_id=run_id,
                stage=self.stage,
                state=State.RUN_STATE_CANCELLED,
                instance_id=self.instance_id,
                generation=self.generation,
            )
            self.journal.runs[run_id] = run
        elif run.state not in ENDED and not self.deaf:
            run.cancel_requested = True
            await self.tell()
        return run

    def answer(self) -> None:
        """Before a question about a run is answered."""
        if self.mute:
            raise MeshError(Reason.UNREACHABLE, "the question was lost on its way")

    async def hold(self) -> None:
        """From now on work waits before its next evaluation."""
        self.may_work.clear()

    async def release(self) -> None:
        """Work goes on."""
        self.may_work.set()
        await self.tell()

    async def tell(self) -> None:
        """Wake the watches."""
        async with self._changed:
            self._changed.notify_all()

    async def watch(self, run_id: str) -> AsyncIterator[stage_pb2.Run]:
        """The run at every change."""
        told: stage_pb2.Run | None = None
        while True:
            run = self.journal.runs[run_id]
            now = stage_pb2.Run()
            now.CopyFrom(run)
            if now != told:
                yield now
                told = now
            if now.state in ENDED:
                return
            async with self._changed:
                if self.journal.runs[run_id] == told:
                    await self._changed.wait()

    async def _work(
        self,
        run: stage_pb2.Run,
        spec: stage_pb2.RunSpec,
        clip: transfer_pb2.Clip,
        source: transfer_pb2.BundleRef | None,
        evaluations: int,
    ) -> None:
        self.journal.begun.append(run.run_id)
        self._began[run.run_id] = time.monotonic()
        self.journal.diary.append((run.run_id, run.job_id, "begin"))
        run.state = State.RUN_STATE_RUNNING
        await self.tell()
        try:
            if source is not None:
                async with self._speaking_to(source.endpoint) as peer:
                    await pull(peer, source, self.store)
            await self._evaluate(run, evaluations)
            if run.cancel_requested:
                run.state = State.RUN_STATE_CANCELLED
            elif self.fail:
                run.failure.reason = self.fail
                run.failure.message = "the engine said so"
                run.failure.resumable = self.resumable
                run.state = State.RUN_STATE_FAILED
            else:
                await self._finish(run, spec, clip)
        except MeshError as error:
            run.failure.reason = error.reason
            run.failure.message = error.message
            run.state = State.RUN_STATE_FAILED
        self.journal.diary.append((run.run_id, run.job_id, "end"))
        await self.tell()

    async def _evaluate(self, run: stage_pb2.Run, evaluations: int) -> None:
        evaluations = self.steps or evaluations
        for index in range(evaluations):
            async with self._changed:
                await self._changed.wait_for(lambda: self.may_work.is_set() or run.cancel_requested)
            if run.cancel_requested:
                return
            await asyncio.sleep(self.step_s)
            run.progress.phase = self.phase
            run.progress.done, run.progress.total = index + 1, evaluations
            await self.tell()

    async def _finish(
        self, run: stage_pb2.Run, spec: stage_pb2.RunSpec, clip: transfer_pb2.Clip
    ) -> None:
        draft = self.store.draft()
        draft.write_bytes(_content(self.stage, run.run_id))
        bundle = self.store.adopt(draft, KINDS[self.stage], clip=clip)
        run.output.bundle_id = bundle.bundle_id
        run.output.size_bytes = bundle.size_bytes
        run.output.sha256 = bundle.sha256
        run.output.read_token = bundle.read_token
        if self.stage == stage_pb2.STAGE_DECODE and self.delivers:
            try:
                await self._deliver(spec, bundle)
            except MeshError as error:  # the registry will fetch it
                self.delivery_errors.append(error.reason)
        if self.loses_output:
            self.store.delete(bundle.bundle_id)
        spent = time.monotonic() - self._began.pop(run.run_id)
        run.timings.add(phase="evaluate").duration.FromMicroseconds(max(1, round(spent * 1e6)))
        run.state = State.RUN_STATE_SUCCEEDED

    async def _deliver(self, spec: stage_pb2.RunSpec, bundle: transfer_pb2.Bundle) -> None:
        lease = transfer_pb2.Lease(run_id=spec.run_id, token=spec.lease_token)
        path = self.store.path(bundle.bundle_id)
        async with self._speaking_to(self.registry) as peer:
            self.uploads.append(await upload(peer, lease, bundle.manifest, path))
            await publish(peer, lease, self.uploads[-1])

    @asynccontextmanager
    async def _speaking_to(self, endpoint: str) -> AsyncIterator[Peer]:
        peer = self._peers.pop(endpoint, None) or Peer(endpoint, self.tokens.of(Role.STAGE))
        try:
            yield peer
        finally:
            if self.keeps_channels:
                self._peers[endpoint] = peer
            else:
                await peer.close()


async def upload(
    peer: Peer, lease: transfer_pb2.Lease, manifest: transfer_pb2.Manifest, path: Path
) -> str:
    """Upload a small file under a lease; the upload's id."""
    content = path.read_bytes()
    stub = transfer_pb2_grpc.TransferServiceStub(peer.channel)
    start = transfer_pb2.StartUploadRequest(manifest=manifest, size_bytes=len(content), lease=lease)
    header = transfer_pb2.WriteHeader(lease=lease)
    finish = transfer_pb2.Finish(size_bytes=len(content), sha256=hashlib.sha256(content).digest())
    async with calling():
        opened = await stub.StartUpload(start, metadata=peer.metadata(), timeout=5)
        header.upload_id = opened.upload_id
        messages = [
            transfer_pb2.WriteRequest(header=header),
            transfer_pb2.WriteRequest(chunk=transfer_pb2.Chunk(data=content)),
            transfer_pb2.WriteRequest(finish=finish),
        ]
        await stub.Write(iter(messages), metadata=peer.metadata(), timeout=5)
    return str(header.upload_id)


async def publish(peer: Peer, lease: transfer_pb2.Lease, upload_id: str) -> str:
    """Publish an upload; the artifact's id."""
    stub = mesh_pb2_grpc.MeshServiceStub(peer.channel)
    request = mesh_pb2.PublishRequest(lease=lease, upload_id=upload_id)
    request.timings.add(phase="mux").duration.FromMilliseconds(7)
    async with calling():
        answer = await stub.Publish(request, metadata=peer.metadata(), timeout=5)
    return str(answer.artifact.artifact_id)


def _content(stage: stage_pb2.Stage, run_id: str) -> bytes:
    if stage == stage_pb2.STAGE_DECODE:
        return b"not really an mp4, but of run " + run_id.encode()
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + struct.pack("<2f", 0.5, 1.5)


class _Encoder(encoder_pb2_grpc.EncoderServiceServicer):
    def __init__(self, fake: FakeStage) -> None:
        self._fake = fake

    async def StartEncode(
        self, request: encoder_pb2.StartEncodeRequest, context: Context
    ) -> encoder_pb2.StartEncodeResponse:
        run = await self._fake.accept(request.run, request.clip, None, 1)
        return encoder_pb2.StartEncodeResponse(run=run)

    async def Inspect(
        self, request: encoder_pb2.InspectRequest, context: Context
    ) -> encoder_pb2.InspectResponse:
        return encoder_pb2.InspectResponse(
            prompt_tokens=len(request.prompt.split()),
            max_prompt_tokens=self._fake.limits["max_prompt_tokens"],
        )


class _Sampler(sampler_pb2_grpc.SamplerServiceServicer):
    def __init__(self, fake: FakeStage) -> None:
        self._fake = fake

    async def StartSample(
        self, request: sampler_pb2.StartSampleRequest, context: Context
    ) -> sampler_pb2.StartSampleResponse:
        self._fake.halves[request.run.run_id] = request.resume_run_id
        run = await self._fake.accept(
            request.run, request.clip, request.conditioning, request.evaluations
        )
        return sampler_pb2.StartSampleResponse(run=run)


class _Decoder(decoder_pb2_grpc.DecoderServiceServicer):
    def __init__(self, fake: FakeStage) -> None:
        self._fake = fake

    async def StartDecode(
        self, request: decoder_pb2.StartDecodeRequest, context: Context
    ) -> decoder_pb2.StartDecodeResponse:
        run = await self._fake.accept(request.run, request.clip, request.latents, 1)
        return decoder_pb2.StartDecodeResponse(run=run)


class _RunServicer(stage_pb2_grpc.RunServiceServicer):
    def __init__(self, fake: FakeStage) -> None:
        self._fake = fake

    async def GetRun(
        self, request: stage_pb2.GetRunRequest, context: Context
    ) -> stage_pb2.GetRunResponse:
        self._fake.answer()
        run = self._fake.journal.runs.get(request.run_id)
        if run is None:
            raise MeshError(Reason.RUN_NOT_FOUND, "this journal has no such run")
        answer = stage_pb2.GetRunResponse(run=run, journal_id=self._fake.journal.journal_id)
        if self._fake.foreign_reports:
            answer.run.instance_id = "somebody-else"
        return answer

    async def WatchRun(
        self, request: stage_pb2.WatchRunRequest, context: Context
    ) -> AsyncIterator[stage_pb2.WatchRunResponse]:
        self._fake.answer()
        if request.run_id not in self._fake.journal.runs:
            raise MeshError(Reason.RUN_NOT_FOUND, "this journal has no such run")
        async for run in self._fake.watch(request.run_id):
            yield stage_pb2.WatchRunResponse(run=run)

    async def CancelRun(
        self, request: stage_pb2.CancelRunRequest, context: Context
    ) -> stage_pb2.CancelRunResponse:
        self._fake.answer()
        run = await self._fake.cancel(request.run_id, request.journal_id)
        return stage_pb2.CancelRunResponse(run=run)
