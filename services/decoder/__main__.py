"""The decoder's process: `python -m services.decoder`, or `reelmesh serve decoder`."""

from reelmesh.v1 import decoder_pb2_grpc, stage_pb2
from services.common.checkpoint.components import ModelSettings
from services.common.config import load_settings
from services.common.rpc.server import Mount
from services.common.stage.service import Part, serve
from services.decoder.config import DecoderSettings
from services.decoder.engine import DecoderEngine
from services.decoder.publication import deliver_to
from services.decoder.servicer import DecoderServicer


def main() -> None:
    """Serve until told to stop."""
    settings = load_settings(DecoderSettings)
    engine = DecoderEngine(
        ModelSettings(settings.checkpoint, settings.device, settings.dtype, settings.threads)
    )
    add = decoder_pb2_grpc.add_DecoderServiceServicer_to_server
    part = Part(
        stage=stage_pb2.STAGE_DECODE,
        load=engine.load,
        mounts=lambda desk: [
            Mount("reelmesh.v1.DecoderService", add, DecoderServicer(desk, engine))
        ],
        deliver=deliver_to,
    )
    serve(settings, part)


if __name__ == "__main__":
    main()
