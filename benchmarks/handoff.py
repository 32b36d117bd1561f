"""How fast a bundle goes from one process to another, beside the same bytes without any care.

A producer process serves a latents bundle through TransferService, and the same file through a
bare streaming call: 1 MiB protobuf chunks, no checks. This process pulls it both ways in turn, and
both ways the file is written and synced. Run: `python -m benchmarks.handoff`.
"""

import argparse
import asyncio
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from reelmesh.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.rpc.channel import Peer
from services.common.rpc.identity import Role
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import load_tokens
from services.common.transfer.gate import StageGate
from services.common.transfer.reader import pull
from services.common.transfer.servicer import TransferServicer
from services.common.transfer.store import BundleStore

# Bytes of float32 latents: a short clip, and the longest that the model makes at its base canvas.
SIZES_MB = (14.3, 41.0)
ROUNDS = 15
_BARE = "/bench.Bare/Read"
_CHUNK_BYTES = 1 << 20
_WARM_UP = 2  # rounds that fill caches and open connections

Work = Callable[[], Awaitable[Any]]


def write_latents(path: Path, size_mb: float) -> None:
    """A safetensors file of about `size_mb` MB: `latents` and `audio_latents`, float32."""
    rows = int(size_mb * 1e6 / 4 / 64)
    generator = np.random.default_rng(0)
    arrays = {
        "audio_latents": generator.standard_normal((rows // 50, 64), np.float32),
        "latents": generator.standard_normal((rows - rows // 50, 64), np.float32),
    }
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(map(_raw, arrays.values())))


def _raw(array: "np.ndarray[Any, Any]") -> bytes:
    return array.tobytes()


async def produce(folder: Path) -> None:
    """The producer process: adopt one bundle a size, serve until the input closes."""
    store = BundleStore(folder / "producer")
    store.open()
    refs = []
    for size_mb in SIZES_MB:
        draft = store.draft(".safetensors")
        write_latents(draft, size_mb)
        bundle = store.adopt(draft, transfer_pb2.BUNDLE_KIND_LATENTS)
        refs.append((bundle.bundle_id, bundle.read_token, str(store.path(bundle.bundle_id))))
    tokens = load_tokens(folder / "tokens.json")
    mount = Mount(
        "reelmesh.v1.TransferService",
        transfer_pb2_grpc.add_TransferServiceServicer_to_server,
        TransferServicer(store, StageGate(store)),
    )
    server = Server("127.0.0.1:0", [mount], tokens.authenticate)
    await server.start()
    bare = grpc.aio.server()
    handler: Any = grpc.unary_stream_rpc_method_handler(
        _read_bare, response_serializer=transfer_pb2.ReadResponse.SerializeToString
    )
    bare.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Bare", {"Read": handler}),)
    )
    bare_port = bare.add_insecure_port("127.0.0.1:0")
    await bare.start()
    print(json.dumps({"port": server.port, "bare_port": bare_port, "bundles": refs}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await bare.stop(None)
    await server.stop(0)


async def _read_bare(request: bytes, context: Any) -> AsyncIterator[transfer_pb2.ReadResponse]:
    # Blocking reads on the loop: the simplest server there is.
    with Path(request.decode()).open("rb") as file:  # noqa: ASYNC230
        while data := file.read(_CHUNK_BYTES):
            message = transfer_pb2.ReadResponse()
            message.chunk.data = data
            yield message


async def _pull_bare(channel: grpc.aio.Channel, source: str, path: Path) -> None:
    parse = transfer_pb2.ReadResponse.FromString
    read: Any = channel.unary_stream(_BARE, response_deserializer=parse)
    with path.open("wb") as file:
        async for message in read(source.encode()):
            file.write(message.chunk.data)
        file.flush()
        os.fsync(file.fileno())


async def _timed(work: Work) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _consume(folder: Path, producer: dict[str, Any], rounds: int) -> dict[str, Any]:
    store = BundleStore(folder / "consumer")
    store.open()
    peer = Peer(f"127.0.0.1:{producer['port']}", load_tokens(folder / "tokens.json").of(Role.STAGE))
    results: dict[str, Any] = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{producer['bare_port']}") as channel:
        for bundle_id, token, source in producer["bundles"]:
            ref = transfer_pb2.BundleRef(bundle_id=bundle_id, read_token=token)
            works: dict[str, Work] = {
                "ours": partial(
                    pull, peer, ref, store, temporary=True
                ),  # as a stage pulls its input
                "bare": partial(_pull_bare, channel, source, folder / "bare.bin"),
            }
            taken: dict[str, list[float]] = {"ours": [], "bare": []}
            for turn in range(rounds + _WARM_UP):
                for name in sorted(works, reverse=turn % 2 == 1):
                    taken[name].append(await _timed(works[name]))
                store.delete(store.list()[0].bundle_id)
                (folder / "bare.bin").unlink()
            ours, bare = taken["ours"][_WARM_UP:], taken["bare"][_WARM_UP:]
            megabytes = Path(source).stat().st_size / 1e6
            results[f"{megabytes:.1f} MB"] = {
                "ours_mb_per_s": megabytes / statistics.median(ours),
                "bare_mb_per_s": megabytes / statistics.median(bare),
                # By round: what disturbs one of a pair mostly disturbs the other too.
                "ratio": statistics.median(b / o for o, b in zip(ours, bare, strict=True)),
                "rounds": rounds,
            }
    await peer.close()
    return results


async def _measure(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="reelmesh-handoff-") as name:
        folder = Path(name)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.handoff",
            "--produce",
            name,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            producer = json.loads(await process.stdout.readline())
            return await _consume(folder, producer, rounds)
        finally:
            process.stdin.close()
            await process.wait()


def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """Median throughput by bundle size: ours, bare, and their ratio."""
    return asyncio.run(_measure(rounds))


def report(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rows = "".join(
        f"| {size} | {row['ours_mb_per_s']:.0f} | {row['bare_mb_per_s']:.0f} "
        f"| {row['ratio']:.2f} |\n"
        for size, row in figures.items()
    )
    return f"| bundle | reelmesh MB/s | bare grpc.aio MB/s | ratio |\n|---|---|---|---|\n{rows}"


def main() -> None:
    """The command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--produce", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.produce is not None:
        asyncio.run(produce(arguments.produce))
        return
    print(report(measure(arguments.rounds)))


if __name__ == "__main__":
    main()
