"""Registration: boots, journals, generations, heartbeats."""

from typing import Any

import pytest

from reelmesh.v1 import instances_pb2, mesh_pb2, mesh_pb2_grpc, stage_pb2
from services.common.ids import new_id
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from tests.registry.mesh import Mesh, until


class Stage:
    """Calls the mesh listener as a stage."""

    def __init__(self, mesh: Mesh) -> None:
        self.peer = Peer(mesh.registry.mesh_address, mesh.tokens.of(Role.STAGE))
        self.stub = mesh_pb2_grpc.MeshServiceStub(self.peer.channel)

    async def register(self, **changes: Any) -> int:
        """The generation."""
        fields: dict[str, Any] = {
            "instance_id": "sampler-9",
            "endpoint": "127.0.0.1:1",
            "boot_id": "boot_" + "1" * 32,
            "journal_id": "jrn_" + "1" * 32,
            "capabilities": stage_pb2.Capabilities(stage=stage_pb2.STAGE_SAMPLE),
        }
        instance = stage_pb2.Instance(**{**fields, **changes})
        async with calling():
            answer = await self.stub.Register(
                mesh_pb2.RegisterRequest(instance=instance), metadata=self.peer.metadata()
            )
        assert answer.heartbeat_interval.ToMilliseconds() == 200
        return int(answer.generation)

    async def beat(self, generation: int, boot_id: str, *, serving: bool = True) -> None:
        """A heartbeat."""
        request = mesh_pb2.HeartbeatRequest(
            instance_id="sampler-9", generation=generation, boot_id=boot_id, serving=serving
        )
        async with calling():
            await self.stub.Heartbeat(request, metadata=self.peer.metadata())


async def states(mesh: Mesh) -> dict[str, int]:
    """The instances' states."""
    client = mesh.local
    found = await client.call(client.instances.ListInstances, instances_pb2.ListInstancesRequest())
    return {one.instance_id: one.state for one in found.instances}


async def test_a_boot_has_one_generation_and_a_new_boot_the_next(mesh: Mesh) -> None:
    """A retried Register is harmless; the older boot's heartbeat is refused."""
    stage = Stage(mesh)
    first, second = "boot_" + "1" * 32, new_id("boot")
    assert await stage.register() == await stage.register() == 1
    assert await stage.register(boot_id=second) == 2
    await stage.beat(2, second)
    with pytest.raises(MeshError) as refused:
        await stage.beat(1, first)
    assert refused.value.reason is Reason.STALE_GENERATION


async def test_another_journal_waits_until_the_lease_is_over(mesh: Mesh) -> None:
    """INSTANCE_HELD while the old one lives; then a new generation."""
    stage = Stage(mesh)
    await stage.register()
    other = {"journal_id": new_id("jrn"), "boot_id": new_id("boot")}
    with pytest.raises(MeshError) as refused:
        await stage.register(**other)
    assert refused.value.reason is Reason.INSTANCE_HELD

    async def suspect() -> bool:
        return (await states(mesh))["sampler-9"] == stage_pb2.INSTANCE_STATE_SUSPECT

    await until(suspect)
    assert await stage.register(**other) == 2
    assert (await states(mesh))["sampler-9"] == stage_pb2.INSTANCE_STATE_READY


async def test_a_heartbeat_says_whether_it_serves(mesh: Mesh) -> None:
    """DRAINING takes nothing new; an unknown instance has to register."""
    stage = Stage(mesh)
    with pytest.raises(MeshError) as refused:
        await stage.beat(1, "boot_" + "1" * 32)
    assert refused.value.reason is Reason.INSTANCE_NOT_FOUND
    await stage.register()
    await stage.beat(1, "boot_" + "1" * 32, serving=False)
    assert (await states(mesh))["sampler-9"] == stage_pb2.INSTANCE_STATE_DRAINING
    await stage.beat(1, "boot_" + "1" * 32)
    assert (await states(mesh))["sampler-9"] == stage_pb2.INSTANCE_STATE_READY


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instance_id": "../x"}, "instance.instance_id"),
        ({"boot_id": "x"}, "instance.boot_id"),
        ({"journal_id": ""}, "instance.journal_id"),
        ({"endpoint": "here"}, "instance.endpoint"),
        ({"pool": "x" * 64}, "instance.pool"),
        (
            {"capabilities": stage_pb2.Capabilities(checkpoint_digest="d" * 65)},
            "instance.capabilities",
        ),
        ({"capabilities": stage_pb2.Capabilities()}, "instance.capabilities.stage"),
    ],
)
async def test_what_could_not_be_called_is_not_registered(
    mesh: Mesh, changes: dict[str, Any], field: str
) -> None:
    """Refused by its field."""
    with pytest.raises(MeshError) as refused:
        await Stage(mesh).register(**changes)
    assert refused.value.field == field
