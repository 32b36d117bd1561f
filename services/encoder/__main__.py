"""The encoder's process: `python -m services.encoder`, or `reelmesh serve encoder`."""

from reelmesh.v1 import encoder_pb2_grpc, stage_pb2
from services.common.checkpoint.components import ModelSettings
from services.common.config import load_settings
from services.common.rpc.server import Mount
from services.common.stage.service import Part, serve
from services.encoder.config import EncoderSettings
from services.encoder.engine import EncoderEngine
from services.encoder.servicer import EncoderServicer


def main() -> None:
    """Serve until told to stop."""
    settings = load_settings(EncoderSettings)
    engine = EncoderEngine(
        ModelSettings(settings.checkpoint, settings.device, settings.dtype, settings.threads)
    )
    add = encoder_pb2_grpc.add_EncoderServiceServicer_to_server
    part = Part(
        stage=stage_pb2.STAGE_ENCODE,
        load=engine.load,
        mounts=lambda desk: [
            Mount("reelmesh.v1.EncoderService", add, EncoderServicer(desk, engine))
        ],
    )
    serve(settings, part)


if __name__ == "__main__":
    main()
