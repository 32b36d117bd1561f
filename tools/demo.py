"""`make demo`: a whole mesh on this machine, one clip, and everything stopped again.

It uses the `reelmesh` command as a person would: `up` in the background, `generate`, Ctrl-C.
"""

import argparse
import hashlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.access import find_access
from services.cli.up import DEMO, plan

PROMPT = "a large purple star moves from left to right, a high tone"
_START_S = 120.0


def main() -> int:
    """The command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=DEMO)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--home", type=Path, default=Path("build/demo"))
    parser.add_argument("--prompt", default=PROMPT)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    home = options.home.resolve()
    began = time.monotonic()
    port = free_port()
    print("starting registry, encoder, sampler and decoder", flush=True)
    reelmesh = [sys.executable, "-m", "services.cli"]
    # A home that an older version left is brought up to date, as an operator would.
    if home.exists():
        subprocess.run([*reelmesh, "migrate", "--home", str(home)], check=True)
    command = [*reelmesh, "up", "--home", str(home), "--port", str(port)]
    mesh = subprocess.Popen([*command, "--checkpoint", str(options.checkpoint)])
    try:
        wait_until_serving(mesh, home, port)
        find_access(home)
        made = subprocess.run(
            [
                *reelmesh, "generate", options.prompt, "--seed", "7", "--force",
                "--home", str(home), "-o", str(options.output),
            ],
            check=False,
        )  # fmt: skip
    finally:
        mesh.send_signal(signal.SIGINT)
        mesh.wait(60)
    if made.returncode:
        return made.returncode
    print(describe(options.output))
    print(f"took {time.monotonic() - began:.1f} s")
    return 0


def free_port() -> int:
    """A port whose followers that a mesh needs are free too."""
    for base in range(17400, 27400, 50):
        try:
            for offset in (0, 1, 10, 20, 30):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        return base
    raise SystemExit("no free ports between 17400 and 27400")


def wait_until_serving(mesh: subprocess.Popen[Any], home: Path, port: int) -> None:
    """Until all four services are SERVING; ends the process if the mesh does not come up."""
    limit = time.monotonic() + _START_S
    for child in plan(home, port, None):
        with grpc.insecure_channel(child.endpoint) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                if mesh.poll() is not None:
                    sys.exit(f"the mesh did not start; its logs are in {home / 'logs'}")
                if time.monotonic() > limit:
                    sys.exit(f"{child.name} is not serving after {_START_S:.0f} s: see {child.log}")
                try:
                    state = stub.Check(
                        health_pb2.HealthCheckRequest(), timeout=1, wait_for_ready=True
                    )
                except grpc.RpcError:
                    continue
                if state.status == health_pb2.HealthCheckResponse.SERVING:
                    break
                time.sleep(0.1)


def describe(path: Path) -> str:
    """Path, frames, size and SHA-256 of an MP4."""
    import av

    with av.open(str(path)) as video:
        frames = sum(1 for _ in video.decode(video=0))
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"{path}: {frames} frames, {len(content)} bytes, SHA-256 {digest}"


if __name__ == "__main__":
    sys.exit(main())
