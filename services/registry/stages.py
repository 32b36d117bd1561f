"""The calls that the registry makes to a stage. Every failure leaves as a MeshError."""

from collections.abc import AsyncGenerator

from reelmesh.v1 import (
    decoder_pb2,
    decoder_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    sampler_pb2,
    sampler_pb2_grpc,
    stage_pb2,
    stage_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
)
from services.common.rpc.channel import Peer, calling
from services.registry.lifecycle import Stage
from services.registry.messages import clip_message
from services.registry.records.bindings import Binding


class StageCalls:
    """Calls with a deadline each."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def start(
        self, peer: Peer, binding: Binding, source: transfer_pb2.BundleRef | None
    ) -> stage_pb2.Run:
        """Start the bound run on its input; the run as the stage answered it."""
        spec, clip = binding.run_spec(), clip_message(binding.job)
        job = binding.job
        options = {"timeout": self._timeout_s, "metadata": peer.metadata()}
        async with calling():
            match binding.run.stage:
                case Stage.ENCODE:
                    encode = encoder_pb2.StartEncodeRequest(run=spec, clip=clip, prompt=job.prompt)
                    encoder = encoder_pb2_grpc.EncoderServiceStub(peer.channel)
                    answer = await encoder.StartEncode(encode, **options)
                case Stage.SAMPLE:
                    sample = sampler_pb2.StartSampleRequest(
                        run=spec,
                        clip=clip,
                        conditioning=source,
                        seed=int(job.seed),
                        evaluations=job.evaluations,
                        resume_run_id=binding.run.resume_run_id,
                    )
                    sampler = sampler_pb2_grpc.SamplerServiceStub(peer.channel)
                    answer = await sampler.StartSample(sample, **options)
                case Stage.DECODE:
                    decode = decoder_pb2.StartDecodeRequest(run=spec, clip=clip, latents=source)
                    decoder = decoder_pb2_grpc.DecoderServiceStub(peer.channel)
                    answer = await decoder.StartDecode(decode, **options)
        run: stage_pb2.Run = answer.run
        return run

    async def get_run(self, peer: Peer, run_id: str) -> stage_pb2.GetRunResponse:
        """The run as the stage has it. RUN_NOT_FOUND if its journal never saw it."""
        stub = stage_pb2_grpc.RunServiceStub(peer.channel)
        request = stage_pb2.GetRunRequest(run_id=run_id)
        async with calling():
            answer: stage_pb2.GetRunResponse = await stub.GetRun(
                request, timeout=self._timeout_s, metadata=peer.metadata()
            )
        return answer

    async def cancel_run(self, peer: Peer, run_id: str, journal_id: str) -> stage_pb2.Run:
        """Ask the run to stop, or bury it; STALE_RUN if the stage has another journal."""
        stub = stage_pb2_grpc.RunServiceStub(peer.channel)
        request = stage_pb2.CancelRunRequest(run_id=run_id, journal_id=journal_id)
        async with calling():
            answer = await stub.CancelRun(
                request, timeout=self._timeout_s, metadata=peer.metadata()
            )
        run: stage_pb2.Run = answer.run
        return run

    async def watch_run(self, peer: Peer, run_id: str) -> AsyncGenerator[stage_pb2.Run]:
        """The run at every change. Close the iterator to end the call."""
        stub = stage_pb2_grpc.RunServiceStub(peer.channel)
        call = stub.WatchRun(stage_pb2.WatchRunRequest(run_id=run_id), metadata=peer.metadata())
        try:
            async with calling():
                async for answer in call:
                    yield answer.run
        finally:
            call.cancel()

    async def inspect_prompt(self, peer: Peer, prompt: str) -> encoder_pb2.InspectResponse:
        """How many tokens the prompt has, and how many are admitted."""
        stub = encoder_pb2_grpc.EncoderServiceStub(peer.channel)
        request = encoder_pb2.InspectRequest(prompt=prompt)
        async with calling():
            answer: encoder_pb2.InspectResponse = await stub.Inspect(
                request, timeout=self._timeout_s, metadata=peer.metadata()
            )
        return answer

    async def delete_bundle(self, peer: Peer, bundle_id: str) -> None:
        """Delete a bundle that the stage holds; one that is gone is no error."""
        stub = transfer_pb2_grpc.TransferServiceStub(peer.channel)
        request = transfer_pb2.DeleteRequest(bundle_id=bundle_id)
        async with calling():
            await stub.Delete(request, timeout=self._timeout_s, metadata=peer.metadata())
