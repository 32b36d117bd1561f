"""The sampler's process: `python -m services.sampler`, or `reelmesh serve sampler`.

This process is the supervisor: it serves gRPC and never touches the model. The ranks below it do.
"""

from reelmesh.v1 import sampler_pb2_grpc, stage_pb2
from services.common.checkpoint.components import ModelSettings
from services.common.config import load_settings
from services.common.rpc.server import Mount
from services.common.stage.service import Part, serve
from services.sampler.config import SamplerSettings
from services.sampler.servicer import SamplerServicer
from services.sampler.supervisor import Supervisor


def main() -> None:
    """Serve until told to stop."""
    settings = load_settings(SamplerSettings)
    model = ModelSettings(settings.checkpoint, settings.device, settings.dtype, settings.threads)
    supervisor = Supervisor(model, settings.load_limit_s, settings.instance_id, settings.log_level)
    add = sampler_pb2_grpc.add_SamplerServiceServicer_to_server
    part = Part(
        stage=stage_pb2.STAGE_SAMPLE,
        load=supervisor.load,
        close=supervisor.close,
        mounts=lambda desk: [
            Mount("reelmesh.v1.SamplerService", add, SamplerServicer(desk, supervisor))
        ],
        layout="tp1-ulysses1",
    )
    serve(settings, part)


if __name__ == "__main__":
    main()
