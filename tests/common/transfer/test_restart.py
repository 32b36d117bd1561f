"""kill -9 in the middle of a transfer, a new process, and only the missing bytes move again."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from reelmesh.v1 import transfer_pb2
from services.common.rpc.channel import Peer
from services.common.rpc.identity import Role
from services.common.transfer.patience import Patience
from services.common.transfer.reader import pull
from services.common.transfer.records import read_record
from services.common.transfer.store import BundleStore
from services.common.transfer.writer import push
from tests.common.transfer.harness import MEDIA, TOKENS, Proxy, eventually, files, sample

DATA = sample(40 << 20)
SLACK = 1 << 20  # frames, pings, a chunk on its way
STUBBORN = Patience(tries=40, first_s=0.1, most_s=0.2)


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A service process and its port."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.common.transfer.served",
        str(folder),
        cwd=Path(__file__).parents[3],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert started.stdout is not None
    try:
        line = await started.stdout.readline()
        yield started, int(line.split()[1])
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def kill(victim: asyncio.subprocess.Process) -> None:
    """SIGKILL, and wait until it is gone."""
    victim.kill()
    await victim.wait()


async def test_a_killed_receiver_gets_only_what_is_missing(tmp_path: Path) -> None:
    """The writer asks the new process how far it came and sends the rest."""
    folder, path = tmp_path / "service", tmp_path / "file"
    path.write_bytes(DATA)
    async with process(folder) as (victim, port):
        proxy = await Proxy(port, lambda way: way.up_bytes >= 30 << 20).start()
        peer = Peer(f"127.0.0.1:{proxy.port}", TOKENS.of(Role.STAGE))
        manifest = transfer_pb2.Manifest(kind=MEDIA)
        task = asyncio.create_task(push(peer, path, manifest, patience=STUBBORN))
        await eventually(lambda: proxy.holds, "most of it is sent")
        records = list((folder / "uploads").glob("*.json"))

        def persisted() -> int:
            return int((read_record(records[0]) or {})["persisted_bytes"])

        await eventually(lambda: persisted() >= 8 << 20, "some of it is synced")
        await kill(victim)
    kept = persisted()
    async with process(folder) as (_, port):
        proxy.upstream = port
        proxy.cut()
        bundle = (await task).bundle
        assert proxy.up_bytes <= len(DATA) - kept + SLACK
    store = BundleStore(folder)
    store.open()
    assert store.path(bundle.bundle_id).read_bytes() == DATA
    assert len(files(folder)) == 2
    await peer.close()
    await proxy.stop()


async def test_a_killed_producer_sends_only_what_is_missing(tmp_path: Path) -> None:
    """The reader goes on where it was, with the same bundle id and token."""
    folder = tmp_path / "service"
    store = BundleStore(folder)
    store.open()
    draft = store.draft()
    draft.write_bytes(DATA)
    theirs = store.adopt(draft, MEDIA)
    own = BundleStore(tmp_path / "own")
    own.open()
    reached = 0

    def progress(done: int, total: int) -> None:
        nonlocal reached
        reached = done

    async with process(folder) as (victim, port):
        proxy = await Proxy(port, lambda way: way.down_bytes >= 20 << 20).start()
        peer = Peer(f"127.0.0.1:{proxy.port}", TOKENS.of(Role.STAGE))
        ref = transfer_pb2.BundleRef(bundle_id=theirs.bundle_id, read_token=theirs.read_token)
        task = asyncio.create_task(pull(peer, ref, own, progress=progress, patience=STUBBORN))
        await eventually(lambda: proxy.holds and reached > 16 << 20, "half of it is here")
        kept = reached
        await kill(victim)
    async with process(folder) as (_, port):
        proxy.upstream = port
        proxy.cut()
        bundle = await task
        assert proxy.down_bytes <= len(DATA) - kept + SLACK
    assert own.path(bundle.bundle_id).read_bytes() == DATA
    assert len(files(tmp_path / "own")) == 2
    await peer.close()
    await proxy.stop()
