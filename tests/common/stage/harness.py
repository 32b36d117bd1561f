"""A real sampler service in this process, but for its engine, which does as a test says."""

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reelmesh.v1 import (
    sampler_pb2,
    sampler_pb2_grpc,
    stage_pb2,
    stage_pb2_grpc,
    transfer_pb2,
    transfer_pb2_grpc,
)
from services.common.checkpoint.components import ModelSettings
from services.common.ids import new_id
from services.common.rpc.channel import Peer
from services.common.rpc.identity import Role
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import load_tokens
from services.common.stage.book import Book
from services.common.stage.journal import Journal
from services.common.stage.runs import Runs
from services.common.stage.servicer import Desk, RunServicer
from services.common.stage.source import Sources
from services.common.transfer.gate import StageGate
from services.common.transfer.servicer import TransferServicer
from services.common.transfer.space import free_bytes
from services.common.transfer.store import BundleStore
from services.common.work import Watch
from services.sampler.order import SampleOrder
from services.sampler.ranks.plan import Plan
from services.sampler.ranks.supervisor import Supervisor
from services.sampler.servicer import SamplerServicer
from services.sampler.shelf import Shelf

CLIP = transfer_pb2.Clip(mode=transfer_pb2.MODE_T2VA, height=64, width=64, frames=124)
LIMITS = stage_pb2.Limits(
    min_frames=124,
    max_frames=345,
    trained_max_frames=345,
    frame_step=17,
    frame_base=5,
    canvas_multiple=32,
    min_edge=64,
    max_pixels=768 * 1344,
    max_evaluations=200,
)


def write_tensors(
    path: Path, **tensors: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
) -> None:
    """A safetensors file of fp32 tensors, written by hand."""
    header, content = {}, b""
    for name, tensor in tensors.items():
        data = tensor.astype("<f4").tobytes()
        offsets = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        content += data
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content)


class ScriptedSampler(Supervisor):
    """Counts its runs; holds, fails or spoils one as told; writes small latents otherwise."""

    def __init__(self) -> None:
        super().__init__(Plan(ModelSettings("none"), "sampler-1"))
        self.orders: list[SampleOrder] = []
        self.seen: list[bytes] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.latents = np.ones((1, 24, 37, 4, 4), np.float32)

    def sample(
        self, order: SampleOrder, conditioning: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """As the test has set it up."""
        self.orders.append(order)
        self.seen.append(conditioning.read_bytes())
        output.write_bytes(b"half of it")
        watch.report("evaluate", 1, order.evaluations)
        while not self.go.wait(0.01):
            watch.raise_if_cancelled()
        if self.error:
            raise self.error
        for done in range(2, order.evaluations + 1):
            watch.report("evaluate", done, order.evaluations)
        audio = np.zeros((2, 32, 207), np.float32)
        write_tensors(output, latents=self.latents, audio_latents=audio)
        return {"evaluate": 0.5}


class Stage:
    """The service, started on a folder, with stubs for the roles that call it."""

    def __init__(
        self,
        folder: Path,
        name: str = "sampler-1",
        free: Callable[[Path], int] = free_bytes,
        shelf: Shelf | None = None,
    ) -> None:
        self._shelf = shelf
        self.engine = ScriptedSampler()
        self.journal = Journal(folder / name)
        self.store = BundleStore(folder / name, free=free)
        self.book = Book(self.journal, name)
        self.tokens = load_tokens(folder / "tokens.json")
        self.instance = stage_pb2.Instance(
            instance_id=name,
            capabilities=stage_pb2.Capabilities(
                stage=stage_pb2.STAGE_SAMPLE, modes=[transfer_pb2.MODE_T2VA], limits=LIMITS
            ),
        )
        self.runs = Runs(
            self.book,
            self.store,
            Sources(self.store, name, self.tokens.of(Role.STAGE), {}),
        )
        self.desk = Desk(
            self.book,
            self.runs,
            Sources(self.store, name, self.tokens.of(Role.STAGE), {}),
            self.store,
            self.instance,
            lambda: self.journal.journal_id,
        )
        self.desk.ready = True
        self._peers: list[Peer] = []

    async def start(self) -> "Stage":
        """Settle and listen."""
        records = self.journal.open()
        self.store.open()
        self.book.settle(records, lambda bundle_id: self.store.find(bundle_id) is not None)
        self._server = Server(
            "127.0.0.1:0",
            [
                Mount(
                    "reelmesh.v1.SamplerService",
                    sampler_pb2_grpc.add_SamplerServiceServicer_to_server,
                    SamplerServicer(self.desk, self.engine, self._shelf),
                ),
                Mount(
                    "reelmesh.v1.RunService",
                    stage_pb2_grpc.add_RunServiceServicer_to_server,
                    RunServicer(self.desk),
                ),
                Mount(
                    "reelmesh.v1.TransferService",
                    transfer_pb2_grpc.add_TransferServiceServicer_to_server,
                    TransferServicer(self.store, StageGate(self.store)),
                ),
            ],
            self.tokens.authenticate,
        )
        await self._server.start()
        self.instance.endpoint = f"127.0.0.1:{self._server.port}"
        return self

    def peer(self, role: Role = Role.REGISTRY) -> Peer:
        """A connection as this role."""
        self._peers.append(Peer(self.instance.endpoint, self.tokens.of(role)))
        return self._peers[-1]

    async def stop(self) -> None:
        """Stop, as a clean shutdown does."""
        self.engine.go.set()
        await self.runs.stop(5)
        for peer in self._peers:
            await peer.close()
        await self._server.stop(0)
        self.journal.close()

    def conditioning(self, clip: transfer_pb2.Clip = CLIP) -> transfer_pb2.BundleRef:
        """A conditioning bundle that lies on this stage."""
        draft = self.store.draft()
        write_tensors(draft, prompt_embeds=np.ones((1, 3, 8), np.float32))
        bundle = self.store.adopt(draft, transfer_pb2.BUNDLE_KIND_CONDITIONING, clip=clip)
        return transfer_pb2.BundleRef(bundle_id=bundle.bundle_id, read_token=bundle.read_token)

    def request(self, **changes: object) -> sampler_pb2.StartSampleRequest:
        """A start that would succeed, with changes."""
        request = sampler_pb2.StartSampleRequest(
            run=stage_pb2.RunSpec(run_id=new_id("run")),
            clip=CLIP,
            conditioning=self.conditioning(),
            seed=7,
            evaluations=4,
        )
        request.MergeFrom(sampler_pb2.StartSampleRequest(**changes))  # type: ignore[arg-type]
        return request
