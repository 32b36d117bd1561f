"""Six clips through the real registry: the time until the last is there, beside the best possible.

The registry is a process of its own with its default settings; its stages' gRPC services, journals
and bundles are real too. Only the engines sleep, a hundred times shorter than what was measured in
the field (see `TOPOLOGIES`). Before the six, one
clip goes to every sampler, so that the dispatcher knows how fast each is by its own measurement.

The best possible is found by trying every assignment of the clips to the samplers, with one encoder
and one decoder that never wait for anybody: no schedule ends earlier, with any dispatcher.
"""

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.registry import running_registry
from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.rpc.tokens import load_tokens
from services.common.telemetry import configure
from services.registry.config import RegistrySettings
from tests.registry.mesh import Client, until
from tests.registry.stages import FakeStage

CLIPS = 6
_SCALE = 100.0
_EVALUATIONS = 4
# Encoding spread over four cards, as measured; decoding on a 3080 Ti, warm.
_ENCODE_S = 13.06
_DECODE_S = {"416x736": 11.859, "736x1280": 31.654}


@dataclass(frozen=True)
class Topology:
    """Samplers by what one clip takes them, derived from published figures of six clips."""

    canvas: str
    name: str
    # As published: the first clip and all six, in seconds.
    first_s: float
    makespan_s: float
    # Clips that each sampler did, by the same figures.
    shares: tuple[int, ...]

    def sample_s(self) -> list[float]:
        """Sampling times. All samplers end together, up to the first clip's other stages: what is
        left of the makespan, over the clips that the sampler did."""
        like = next(
            one for one in TOPOLOGIES if one.canvas == self.canvas and self.base == one.name
        )
        steady_s = (like.makespan_s - like.first_s) / (like.shares[0] - 1)
        others_s = self.first_s - steady_s
        return [
            steady_s if index < len(like.shares) else (self.makespan_s - others_s) / share
            for index, share in enumerate(self.shares)
        ]

    @property
    def base(self) -> str:
        """The topology without the XTX, whose samplers' times are plain to see."""
        return self.name.removesuffix(" + XTX")


# Source: a published write-up of MiniMax-H3 on a pipeline of T10 and XTX cards with one decoder
# (six clips, same seeds). "4+4" are two samplers of four T10 each.
TOPOLOGIES = (
    Topology("416x736", "8xT10", 133.314, 440.791, (6,)),
    Topology("416x736", "4+4", 146.396, 296.917, (3, 3)),
    Topology("416x736", "4+4 + XTX", 147.707, 266.324, (2, 2, 2)),
    Topology("416x736", "8xT10 + XTX", 136.910, 332.706, (4, 2)),
    Topology("736x1280", "8xT10", 238.642, 1024.217, (6,)),
    Topology("736x1280", "8xT10 + XTX", 241.279, 945.328, (5, 1)),
    Topology("736x1280", "4+4", 346.771, 902.538, (3, 3)),
    Topology("736x1280", "4+4 + XTX", 352.477, 677.538, (2, 2, 2)),
)


def find_best(samples_s: list[float], encode_s: float, decode_s: float) -> float:
    """The least makespan of all assignments of the clips to the samplers."""
    best = float("inf")
    for assignment in product(range(len(samples_s)), repeat=CLIPS):
        free = [0.0] * len(samples_s)
        ready = []
        for clip, sampler in enumerate(assignment):
            free[sampler] = max(free[sampler], (clip + 1) * encode_s) + samples_s[sampler]
            ready.append(free[sampler])
        end = 0.0
        for latents in sorted(ready):
            end = max(end, latents) + decode_s
        best = min(best, end)
    return best


def measure() -> list[dict[str, Any]]:
    """For every topology: measured and best, in the stubs' seconds."""
    configure("registry", "registry", "error")
    return [asyncio.run(_measure(topology)) for topology in TOPOLOGIES]


async def _measure(topology: Topology) -> dict[str, Any]:
    samples_s = [seconds / _SCALE for seconds in topology.sample_s()]
    encode_s, decode_s = _ENCODE_S / _SCALE, _DECODE_S[topology.canvas] / _SCALE
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        async with running_registry(home) as registry:
            known = json.loads((home / "client.json").read_text())
            client = Client(registry.clients, known["key"], known["owner_id"])
            stages: list[FakeStage] = []
            try:
                await _start(home, registry.mesh, stages, len(samples_s))
                for stage, seconds in zip(
                    stages,
                    (encode_s, decode_s, *(one / _EVALUATIONS for one in samples_s)),
                    strict=True,
                ):
                    stage.step_s = seconds
                names = [stage.instance_id for stage in stages[2:]]
                await _run(client, [{"sampler_id": name} for name in names])
                measured = await _run(client, [{} for _ in range(CLIPS)])
            finally:
                await client.peer.close()
                for stage in stages:
                    await stage.crash()
    best = find_best(samples_s, encode_s, decode_s)
    return {
        "canvas": topology.canvas,
        "topology": topology.name,
        "samples_s": samples_s,
        "measured_s": measured,
        "best_s": best,
        "ratio": measured / best,
    }


async def _start(home: Path, registry: str, stages: list[FakeStage], samplers: int) -> None:
    """An encoder, a decoder and the samplers, registered; they behave as stages in the field do."""
    tokens = load_tokens(RegistrySettings(home=home).tokens_path)
    kinds = [(stage_pb2.STAGE_ENCODE, "encoder-0"), (stage_pb2.STAGE_DECODE, "decoder-0")]
    kinds += [(stage_pb2.STAGE_SAMPLE, f"sampler-{index}") for index in range(samplers)]
    for kind, name in kinds:
        stage = FakeStage(kind, name, home / "stages", tokens, registry)
        stage.beats_as_asked = stage.keeps_channels = True
        stages.append(stage)
        await stage.start()

    async def registered() -> bool:
        return all(stage.generation for stage in stages)

    await until(registered)


async def _run(client: Client, specs: list[dict[str, Any]]) -> float:
    """Seconds from the first CreateJob until the last job has SUCCEEDED, as the client sees it."""
    began = time.perf_counter()
    jobs = [await client.create(evaluations=_EVALUATIONS, **spec) for spec in specs]
    await asyncio.gather(*(_watch(client, job.job_id) for job in jobs))
    return time.perf_counter() - began


async def _watch(client: Client, job_id: str) -> None:
    call = client.jobs.WatchJob(
        jobs_pb2.WatchJobRequest(job_id=job_id), metadata=client.peer.metadata()
    )
    job = jobs_pb2.Job()
    async for message in call:
        if message.HasField("job"):
            job = message.job
    if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
        raise RuntimeError(f"{job.failure.reason}: {job.failure.message}")


def report(figures: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| canvas | topology | sampling, s/100 | six clips | best possible | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for one in figures:
        samples = ", ".join(f"{seconds:.3f}" for seconds in one["samples_s"])
        lines.append(
            f"| {one['canvas']} | {one['topology']} | {samples} | {one['measured_s']:.3f} "
            f"| {one['best_s']:.3f} | {one['ratio']:.3f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(report(measure()))
