"""Takes a finished MP4 to the registry: upload under the run's lease, then publish.

It is a short cut, not a duty. The bundle stays on this disk, and a registry that was away, or that
never saw the call, fetches it from here; so a failure here fails no run.
"""

import time

import structlog

from reelmesh.v1 import mesh_pb2, mesh_pb2_grpc, transfer_pb2
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError
from services.common.stage.order import Deliver, Output, phase_times
from services.common.transfer.writer import push

log = structlog.get_logger()

_PUBLISH_S = 30.0


def deliver_to(registry: Peer) -> Deliver:
    """The delivery of a decoder's outputs to this registry."""

    async def deliver(output: Output) -> str:
        spec = output.order.spec
        lease = transfer_pb2.Lease(run_id=spec.run_id, token=spec.lease_token)
        began = time.monotonic()
        try:
            pushed = await push(
                registry, output.path, output.bundle.manifest, lease, progress=output.report
            )
            timings = {**output.timings, "upload": time.monotonic() - began}
            stub = mesh_pb2_grpc.MeshServiceStub(registry.channel)
            async with calling():
                answer: mesh_pb2.PublishResponse = await stub.Publish(
                    mesh_pb2.PublishRequest(
                        lease=lease, upload_id=pushed.upload_id, timings=phase_times(timings)
                    ),
                    metadata=registry.metadata(),
                    timeout=_PUBLISH_S,
                )
        except MeshError as error:
            log.warning("publish_failed", reason=error.reason, error=error.message)
            return ""
        return answer.artifact.artifact_id

    return deliver
