"""A stage's process as it is, but for its engine, which sleeps and writes a small file.

`python -m tests.chaos.stage STAGE`, told the rest by the environment as every stage is. What an
engine writes is made from its input alone, so the end of a job proves all that went into it.
"""

import hashlib
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reelmesh.v1 import (
    decoder_pb2_grpc,
    encoder_pb2_grpc,
    sampler_pb2_grpc,
    stage_pb2,
    transfer_pb2,
)
from services.common.config import StageSettings
from services.common.rpc.server import Mount
from services.common.stage import service
from services.common.stage.servicer import Desk
from services.common.work import Watch
from services.decoder.config import DecoderSettings
from services.decoder.publication import deliver_to
from services.decoder.servicer import DecoderServicer
from services.encoder.config import EncoderSettings
from services.encoder.servicer import EncoderServicer
from services.sampler.config import SamplerSettings
from services.sampler.servicer import SamplerServicer

EVALUATIONS = 5
LIMITS: dict[str, Any] = {
    "min_frames": 124,
    "max_frames": 345,
    "trained_max_frames": 345,
    "frame_step": 17,
    "frame_base": 5,
    "canvas_multiple": 32,
    "min_edge": 64,
    "max_pixels": 1344 * 768,
    "default_height": 64,
    "default_width": 64,
    "default_frames": 124,
    "default_evaluations": EVALUATIONS,
    "max_evaluations": 100,
    "max_prompt_tokens": 50,
    "max_aspect": 4.0,
}


def conditioning_of(prompt: str) -> bytes:
    """The file that the encoder makes."""
    return _tensors(hashlib.sha256(prompt.encode()).digest())


def latents_of(conditioning: bytes, seed: int) -> bytes:
    """The file that a sampler makes."""
    return _tensors(hashlib.sha256(conditioning + str(seed).encode()).digest())


def video_of(latents: bytes) -> bytes:
    """The file that a decoder makes; not really an MP4."""
    return b"a video of " + hashlib.sha256(latents).hexdigest().encode() * 2000


def _tensors(content: bytes) -> bytes:
    """A safetensors file of one tensor of floats, the bytes' values."""
    values = struct.pack(f"<{len(content)}f", *content)
    places = {"dtype": "F32", "shape": [len(content)], "data_offsets": [0, len(values)]}
    header = json.dumps({"x": places}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + values


class Engine:
    """All three engines; each takes its time, in as many steps as it is told."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def load(self) -> None:
        """Nothing is heavy here."""

    def count_tokens(self, prompt: str) -> int:
        """Words."""
        return len(prompt.split())

    def encode(self, order: Any, output: Path, watch: Watch, **_: Any) -> dict[str, float]:
        """Prompt to conditioning."""
        return self._make("encode_text", 2, output, watch, lambda: conditioning_of(order.prompt))

    def sample(
        self, order: Any, conditioning: Path, output: Path, watch: Watch, *_: Any, **__: Any
    ) -> dict[str, float]:
        """Conditioning to latents."""
        return self._make(
            *("evaluate", order.evaluations, output, watch),
            lambda: latents_of(conditioning.read_bytes(), order.seed),
        )

    def decode(
        self, order: Any, latents: Path, output: Path, watch: Watch, **_: Any
    ) -> dict[str, float]:
        """Latents to a video."""
        return self._make("decode_video", 3, output, watch, lambda: video_of(latents.read_bytes()))

    def _make(
        self, phase: str, steps: int, output: Path, watch: Watch, content: Callable[[], bytes]
    ) -> dict[str, float]:
        for done in range(steps):
            watch.report(phase, done, steps)
            watch.raise_if_cancelled()
            time.sleep(self._seconds / steps)
        watch.report(phase, steps, steps)
        output.write_bytes(content())
        return {phase: self._seconds}


def _publish(_settings: StageSettings, stage: Any, **_: Any) -> stage_pb2.Capabilities:
    """Capabilities that no checkpoint has to back."""
    return stage_pb2.Capabilities(
        stage=stage,
        modes=[transfer_pb2.MODE_T2VA],
        checkpoint="none",
        checkpoint_digest="c" * 64,
        limits=stage_pb2.Limits(**LIMITS),
        slots=1,
    )


def main(name: str) -> None:
    """Serve the stage of this name."""
    vars(service)["publish"] = _publish
    engine: Any = Engine(float(os.environ["CHAOS_SECONDS"]))

    def mounts(add: Any, servicer: Any) -> Callable[[Desk], Sequence[Mount]]:
        title = f"reelmesh.v1.{name.title()}Service"
        return lambda desk: [Mount(title, add, servicer(desk, engine))]

    settings: StageSettings
    match name:
        case "encoder":
            settings, stage = EncoderSettings(), stage_pb2.STAGE_ENCODE
            made = mounts(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, EncoderServicer)
        case "sampler":
            settings, stage = SamplerSettings(), stage_pb2.STAGE_SAMPLE
            made = mounts(sampler_pb2_grpc.add_SamplerServiceServicer_to_server, SamplerServicer)
        case _:
            settings, stage = DecoderSettings(), stage_pb2.STAGE_DECODE
            made = mounts(decoder_pb2_grpc.add_DecoderServiceServicer_to_server, DecoderServicer)
    deliver = deliver_to if name == "decoder" else None
    service.serve(
        settings, service.Part(stage=stage, load=engine.load, mounts=made, deliver=deliver)
    )


if __name__ == "__main__":
    main(sys.argv[1])
