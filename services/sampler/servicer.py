"""SamplerService: decodes a start, hands it to the runtime, encodes the answer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from reelmesh.v1 import sampler_pb2, sampler_pb2_grpc, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.interceptors import Context
from services.common.stage.clip import check_clip, latents_bytes
from services.common.stage.modes import mode_name
from services.common.stage.servicer import Desk, check_message, check_run_id
from services.common.work import EngineError, Watch
from services.sampler.order import SNAPSHOT_REFUSED, SampleOrder
from services.sampler.ranks.supervisor import Supervisor
from services.sampler.shelf import Shelf

log = structlog.get_logger()

_HEADER_BYTES = 1 << 16  # of the safetensors file, above its tensors


class SamplerServicer(sampler_pb2_grpc.SamplerServiceServicer):
    """SamplerService over a supervisor; without a shelf runs keep no snapshots."""

    def __init__(self, desk: Desk, supervisor: Supervisor, shelf: Shelf | None = None) -> None:
        self._desk = desk
        self._supervisor = supervisor
        self._shelf = shelf

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
        if request.resume_run_id:
            check_run_id(request.resume_run_id, "resume_run_id")
        clip = request.clip
        order = SampleOrder(
            mode=mode_name(clip.mode),
            height=clip.height,
            width=clip.width,
            frames=clip.frames,
            seed=request.seed,
            evaluations=request.evaluations,
            snapshot=self._shelf.place(request.run.run_id) if self._shelf else None,
        )
        run_id, half_run_id = request.run.run_id, request.resume_run_id

        def work(source: Path | None, output: Path, watch: Watch) -> Mapping[str, float]:
            assert source is not None  # an order with a source has one
            if self._shelf is None or not half_run_id:
                return self._supervisor.sample(order, source, output, watch)
            half = self._shelf.inherit(half_run_id, run_id)
            return self._go_on(order, half, source, output, watch)

        run = await self._desk.start(
            request,
            work,
            source=request.conditioning,
            source_kind=transfer_pb2.BUNDLE_KIND_CONDITIONING,
            source_field="conditioning",
            output_kind=transfer_pb2.BUNDLE_KIND_LATENTS,
            output_bytes=self._output_bytes(request),
        )
        return sampler_pb2.StartSampleResponse(run=run)

    def _go_on(
        self, order: SampleOrder, half: Path | None, source: Path, output: Path, watch: Watch
    ) -> Mapping[str, float]:
        """From another run's snapshot if that is a half of this run, else from the beginning."""
        try:
            if half is None:
                raise EngineError(SNAPSHOT_REFUSED, "that run has left no snapshot here")
            return self._supervisor.sample(replace(order, resume=half), source, output, watch)
        except EngineError as error:
            if error.reason != SNAPSHOT_REFUSED:
                raise
            log.warning("begins_at_zero", error=error.message)
        if order.snapshot is not None:
            order.snapshot.unlink(missing_ok=True)
        return self._supervisor.sample(order, source, output, watch)

    def _output_bytes(self, request: sampler_pb2.StartSampleRequest) -> int:
        """The latents, and twice (while one replaces the other) a snapshot with its conditions."""
        latents = latents_bytes(request.clip) + _HEADER_BYTES
        if self._shelf is None:
            return latents
        return latents + 2 * (latents + request.conditioning.size_bytes)
