"""DecoderService: decodes a start, hands it to the runtime, encodes the answer."""

from collections.abc import Mapping
from pathlib import Path

from reelmesh.v1 import decoder_pb2, decoder_pb2_grpc, transfer_pb2
from services.common.rpc.interceptors import Context
from services.common.stage.clip import check_clip
from services.common.stage.servicer import Desk, check_message
from services.common.work import Watch
from services.decoder.engine import DecodeOrder, DecoderEngine

# An MP4 of this quality stays far below one byte a pixel; the sound is 24 kB a second at most.
_BYTES_PER_PIXEL = 0.5


class DecoderServicer(decoder_pb2_grpc.DecoderServiceServicer):
    """DecoderService over an engine."""

    def __init__(self, desk: Desk, engine: DecoderEngine) -> None:
        self._desk = desk
        self._engine = engine

    async def StartDecode(
        self, request: decoder_pb2.StartDecodeRequest, context: Context
    ) -> decoder_pb2.StartDecodeResponse:
        """Start a run."""
        clip = request.clip
        check_clip(clip, self._desk.instance.capabilities)
        check_message(request, "latents", request.HasField("latents"))
        order = DecodeOrder(height=clip.height, width=clip.width, frames=clip.frames)

        def work(source: Path | None, output: Path, watch: Watch) -> Mapping[str, float]:
            assert source is not None  # an order with a source has one
            return self._engine.decode(order, source, output, watch)

        run = await self._desk.start(
            request,
            work,
            source=request.latents,
            source_kind=transfer_pb2.BUNDLE_KIND_LATENTS,
            source_field="latents",
            output_kind=transfer_pb2.BUNDLE_KIND_VIDEO,
            output_bytes=int(clip.height * clip.width * clip.frames * _BYTES_PER_PIXEL),
        )
        return decoder_pb2.StartDecodeResponse(run=run)
