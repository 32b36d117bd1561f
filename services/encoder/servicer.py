"""EncoderService: decodes a start, hands it to the runtime, encodes the answer."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from reelmesh.v1 import encoder_pb2, encoder_pb2_grpc, transfer_pb2
from services.common.prompt import check_prompt
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.interceptors import Context
from services.common.stage.clip import check_clip
from services.common.stage.modes import mode_name
from services.common.stage.servicer import Desk
from services.common.work import Watch
from services.encoder.engine import EncodeOrder, EncoderEngine

# Conditioning of a text prompt is 1 to 3 MB; more than this is not a prompt's.
_OUTPUT_BYTES = 64 << 20


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """EncoderService over an engine."""

    def __init__(self, desk: Desk, engine: EncoderEngine) -> None:
        self._desk = desk
        self._engine = engine

    async def StartEncode(
        self, request: encoder_pb2.StartEncodeRequest, context: Context
    ) -> encoder_pb2.StartEncodeResponse:
        """Start a run."""
        if request.references:
            raise MeshError(
                Reason.NOT_IMPLEMENTED, "references are not implemented yet", field="references"
            )
        check_clip(request.clip, self._desk.instance.capabilities)
        check_prompt(request.prompt, "prompt")
        await self._count(request.prompt, "prompt")
        clip = request.clip
        order = EncodeOrder(
            mode_name(clip.mode), request.prompt, clip.height, clip.width, clip.frames
        )

        def work(_source: Path | None, output: Path, watch: Watch) -> Mapping[str, float]:
            return self._engine.encode(order, output, watch)

        run = await self._desk.start(
            request,
            work,
            output_kind=transfer_pb2.BUNDLE_KIND_CONDITIONING,
            output_bytes=_OUTPUT_BYTES,
        )
        return encoder_pb2.StartEncodeResponse(run=run)

    async def Inspect(
        self, request: encoder_pb2.InspectRequest, context: Context
    ) -> encoder_pb2.InspectResponse:
        """Count the tokens of a prompt."""
        if request.WhichOneof("input") == "media":
            raise MeshError(
                Reason.NOT_IMPLEMENTED, "reading media is not implemented yet", field="media"
            )
        check_prompt(request.prompt, "prompt")
        tokens = await self._tokens(request.prompt)
        limit = self._desk.instance.capabilities.limits.max_prompt_tokens
        return encoder_pb2.InspectResponse(prompt_tokens=tokens, max_prompt_tokens=limit)

    async def _tokens(self, prompt: str) -> int:
        if not self._desk.ready:
            raise MeshError(Reason.NOT_READY, "the model is still loading", retry_after_s=2)
        return await asyncio.to_thread(self._engine.count_tokens, prompt)

    async def _count(self, prompt: str, field: str) -> None:
        limit = self._desk.instance.capabilities.limits.max_prompt_tokens
        tokens = await self._tokens(prompt)
        if tokens > limit:
            raise MeshError(
                Reason.PROMPT_TOO_LONG,
                f"the prompt has {tokens} tokens, the limit is {limit}",
                field=field,
            )
