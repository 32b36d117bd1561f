"""SamplerService: decodes a start, hands it to the runtime, encodes the answer."""

from collections.abc import Mapping
from pathlib import Path

from reelmesh.v1 import sampler_pb2, sampler_pb2_grpc, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.interceptors import Context
from services.common.stage.clip import check_clip, latents_bytes
from services.common.stage.modes import mode_name
from services.common.stage.servicer import Desk, check_message
from services.common.work import Watch
from services.sampler.engine import SampleOrder
from services.sampler.supervisor import Supervisor

_HEADER_BYTES = 1 << 16  # of the safetensors file, above its tensors


class SamplerServicer(sampler_pb2_grpc.SamplerServiceServicer):
    """SamplerService over a supervisor."""

    def __init__(self, desk: Desk, supervisor: Supervisor) -> None:
        self._desk = desk
        self._supervisor = supervisor

    async def StartSample(
        self, request: sampler_pb2.StartSampleRequest, context: Context
    ) -> sampler_pb2.StartSampleResponse:
        """Start a run."""
        capabilities = self._desk.instance.capabilities
        check_clip(request.clip, capabilities)
        check_message(request, "conditioning", request.HasField("conditioning"))
        most = capabilities.limits.max_evaluations
        if not 1 <= request.evaluations <= most:
            raise MeshError(
                Reason.EVALUATIONS_OUT_OF_RANGE,
                f"evaluations are 1 to {most}, not {request.evaluations}",
                field="evaluations",
            )
        clip = request.clip
        order = SampleOrder(
            mode=mode_name(clip.mode),
            height=clip.height,
            width=clip.width,
            frames=clip.frames,
            seed=request.seed,
            evaluations=request.evaluations,
        )

        def work(source: Path | None, output: Path, watch: Watch) -> Mapping[str, float]:
            assert source is not None  # an order with a source has one
            return self._supervisor.sample(order, source, output, watch)

        run = await self._desk.start(
            request,
            work,
            source=request.conditioning,
            source_kind=transfer_pb2.BUNDLE_KIND_CONDITIONING,
            source_field="conditioning",
            output_kind=transfer_pb2.BUNDLE_KIND_LATENTS,
            output_bytes=latents_bytes(clip) + _HEADER_BYTES,
        )
        return sampler_pb2.StartSampleResponse(run=run)
