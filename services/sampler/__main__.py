"""The sampler's process: `python -m services.sampler`, or `reelmesh serve sampler`.

This process is the supervisor: it serves gRPC and never touches the model. The ranks below it do.
"""

import os
import sys

import structlog

from reelmesh.v1 import sampler_pb2_grpc, stage_pb2
from services.common import telemetry
from services.common.config import load_settings
from services.common.rpc.server import Mount
from services.common.stage.service import Part, serve
from services.common.transfer.store import utc_now
from services.sampler.config import SamplerSettings
from services.sampler.ranks.supervisor import Supervisor
from services.sampler.servicer import SamplerServicer
from services.sampler.shelf import Shelf


def main() -> None:
    """Serve until told to stop. Exits with 2 if the model cannot be divided as configured."""
    settings = load_settings(SamplerSettings)
    telemetry.configure(settings.table, settings.instance_id, settings.log_level)
    try:
        plan = settings.plan(os.environ)
    except ValueError as error:  # a layout, a checkpoint or a recipe that cannot be
        structlog.get_logger().error("cannot_start", error=str(error))
        sys.exit(2)
    supervisor = Supervisor(plan)
    shelf = Shelf(settings.folder / "snapshots", settings.snapshot_retention_s)
    add = sampler_pb2_grpc.add_SamplerServiceServicer_to_server
    part = Part(
        stage=stage_pb2.STAGE_SAMPLE,
        load=supervisor.load,
        close=supervisor.close,
        follow=supervisor.follow,
        mounts=lambda desk: [
            Mount("reelmesh.v1.SamplerService", add, SamplerServicer(desk, supervisor, shelf))
        ],
        layout=plan.layout.name,
        modes=plan.recipe.modes,
        sweep=lambda desk: shelf.sweep(desk.book.find, utc_now()),
    )
    serve(settings, part)


if __name__ == "__main__":
    main()
