"""Four bare rank processes that take on one layout after the other and tell what they computed.

They import the libraries once; a sampler's own ranks have one layout for life.
"""

import hashlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Watch
from services.sampler.engine import SamplerEngine
from services.sampler.layout import RankLayout
from services.sampler.recipe import Recipe
from tests.sampler.orders import order

PROCESSES = 4
LIMIT_S = 280
BOTH = Recipe(("transformer", "transformer_ref"))
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """One layout to measure, over some of the processes."""

    layout: RankLayout
    settings: ModelSettings
    conditionings: Mapping[str, Path]
    rendezvous: Path
    output: Path
    recipe: Recipe


@dataclass(frozen=True)
class Found:
    """What a rank computed: forwards by rows modulo 64, latents by mode, and what it keeps."""

    rank: int
    forwards: dict[int, Tensors]
    latents: dict[str, Tensors]
    kept: dict[str, tuple[int, str]]
    """Elements that this rank holds of each parameter, and their dtype."""


class Pool:
    """The processes."""

    def __init__(self) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(PROCESSES):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def measure(
        self,
        layouts: Mapping[str, RankLayout],
        settings: ModelSettings,
        given: Mapping[str, Path],
        recipe: Recipe = BOTH,
    ) -> dict[str, list[Found]]:
        """Every rank's findings in each layout; several layouts at once if they fit."""
        found, folders = {}, {}
        waiting = list(layouts.items())
        while waiting:
            free, taken = list(self._pipes), []
            while waiting and len(free) >= waiting[0][1].ranks:
                name, layout = waiting.pop(0)
                folder = Path(tempfile.mkdtemp(prefix="reelmesh-test-"))
                folders[name] = folder
                task = Task(layout, settings, given, folder / "meet", folder / "latents", recipe)
                crew = [free.pop(0) for _ in range(layout.ranks)]
                for rank, pipe in enumerate(crew):
                    pipe.send((task, rank))
                taken.append((name, crew))
            for name, crew in taken:
                found[name] = [_answer(pipe) for pipe in crew]
                shutil.rmtree(folders[name])
        return found

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _answer(pipe: Connection) -> Found:
    assert pipe.poll(LIMIT_S), "a rank of the pool does not answer"
    answer = pipe.recv()
    assert isinstance(answer, Found), answer
    return answer


def _serve(pipe: Connection) -> None:
    while True:
        task, rank = pipe.recv()
        try:
            pipe.send(_measure(task, rank))
        except Exception as error:
            pipe.send(repr(error))
            raise


def _measure(task: Task, rank: int) -> Found:
    from xfuser.core.distributed import parallel_state

    from services.sampler.parallel.group import Group, Meeting

    torch.manual_seed(1000 + rank)  # whatever state a process is in, the ranks draw the same
    group = Group(Meeting(task.layout, task.rendezvous, LIMIT_S, LIMIT_S, task.recipe), rank)
    engine = SamplerEngine(task.settings, task.recipe, group)
    engine.load()
    transformer = engine._parts["transformer"]
    fused = task.recipe.compile  # then there is no forward but a run's
    found = Found(
        rank,
        forwards={} if fused else {rows: forward(transformer, rows) for rows in (0, 1, 63)},
        latents=latents(engine, task.conditionings, task.output) if rank == 0 else {},
        kept={}
        if fused
        else {
            name: (_local(weight).numel(), str(weight.dtype))
            for name, weight in transformer.named_parameters()
        },
    )
    if rank > 0:
        latents(engine, task.conditionings, task.output)
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
    return found


def _local(weight: Any) -> torch.Tensor:
    local: torch.Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return local


def latents(engine: SamplerEngine, given: Mapping[str, Path], output: Path) -> dict[str, Tensors]:
    """The engine's latents of every mode."""
    made = {}
    for mode, conditioning in given.items():
        engine.sample(order(mode=mode), conditioning, output, Watch())
        made[mode] = load_file(output) if output.exists() else {}
    return made


def forward(transformer: Any, modulo: int) -> Tensors:
    """Video and audio velocities of one forward whose packed rows are `modulo` modulo 64."""
    video, audio = 222, 414
    text = 4 + modulo  # 640 rows and the modulo
    rows = text + audio + video
    generator = torch.Generator().manual_seed(modulo)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    kinds = torch.cat([torch.full((text,), 1), torch.full((audio,), 2), torch.full((video,), 0)])
    with torch.no_grad():
        velocities = transformer(
            hidden_states=draw(1, video, 96),
            audio_hidden_states=draw(1, audio, 32),
            encoder_hidden_states=draw(1, text, 64),
            timestep=torch.tensor([0.3, 0.6]),
            timestep_indices=(kinds == 2).long(),
            token_tags=kinds,
            position_ids=torch.randint(0, 40, (rows, 3), generator=generator).double(),
            text_indices=torch.arange(text),
            audio_indices=torch.arange(text, text + audio),
            video_indices=torch.arange(text + audio, rows),
            return_dict=False,
        )
    return dict(zip(("video", "audio"), velocities, strict=True))


def digest(tensors: Tensors) -> str:
    """Of all bytes of a rank's tensors."""
    content = b"".join(tensor.float().numpy().tobytes() for tensor in tensors.values())
    return hashlib.sha256(content).hexdigest()


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a part of the largest magnitude."""
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())
