"""Seconds per evaluation of the full-width transformer in several layouts, each beside one card.

Every rank is a process that sees one card, as a sampler's ranks do, and everything is measured in
one run: per layout the seconds of an evaluation through the engine, the speed-up and efficiency
against one card, the memory of the weights and at the peak, the share of the cards' busy time that
is communication, and how far the latents of a short run are from one card's. Random weights are
made on the cards, the same in every layout. Prints Markdown. Run: `python -m benchmarks.layouts`;
`--tiny --device cpu` runs the same on a small model, without cards.
"""

import argparse
import dataclasses
import gc
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from services.common.checkpoint.components import ModelSettings
from services.sampler.layout import RankLayout
from services.sampler.recipe import Recipe

LIMIT_S = 540
FUSED = Recipe(compile=True)
ONE = RankLayout()
LAYOUTS: dict[str, tuple[RankLayout, Recipe]] = {
    "one card fused": (ONE, FUSED),
    "U2 fused": (RankLayout(ulysses=2), FUSED),
    "one card": (ONE, Recipe()),
    "U2": (RankLayout(ulysses=2), Recipe()),
    "TP2": (RankLayout(tp=2), Recipe()),
    "FSDP2": (RankLayout(ulysses=2, fsdp=True), Recipe()),
    "U4 fused": (RankLayout(ulysses=4), FUSED),
    "U4": (RankLayout(ulysses=4), Recipe()),
    "TP2xU2": (RankLayout(tp=2, ulysses=2), Recipe()),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """One layout to measure."""

    name: str
    layout: RankLayout
    recipe: Recipe
    folder: Path
    options: Any


@dataclasses.dataclass(frozen=True)
class Found:
    """What one rank measured; `seconds` and `communicating` by canvas."""

    seconds: list[float]
    communicating: list[float]
    weights_bytes: int
    peak_bytes: int


class Random:
    """Weights by their names: every rank, and every layout, has the same."""

    def __init__(self, config: Mapping[str, Any], device: Any) -> None:
        import torch
        from diffusers import MiniMaxH3Transformer3DModel

        make: Any = MiniMaxH3Transformer3DModel
        with torch.device("meta"):
            self._shapes = {k: tuple(v.shape) for k, v in make(**config).named_parameters()}
        self._device = device

    def tensor(self, name: str) -> Any:
        """As a fresh model has them: small matrices, norms of one, biases of zero."""
        import torch

        shape = self._shapes[name]
        if len(shape) == 1:
            fill = torch.zeros if name.endswith("bias") else torch.ones
            return fill(shape, device=self._device)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        return torch.randn(shape, generator=generator, device=self._device).mul_(0.02)


class Crew:
    """The processes. One that failed leaves the others waiting: then all are made anew."""

    def __init__(self, options: Any) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(options.ranks):
            ours, theirs = spawning.Pipe()
            environment = {"CUDA_VISIBLE_DEVICES": str(rank)} if options.device == "cuda" else {}
            process = spawning.Process(target=serve, args=(theirs, rank, environment), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def ask(self, task: Task) -> list[Found]:
        """What every rank of the layout found, by rank; nothing if one failed, which is printed."""
        asked = self._pipes[: task.layout.ranks]
        for pipe in asked:
            pipe.send(task)
        found: dict[Any, Found] = {}
        limit = time.monotonic() + LIMIT_S
        while len(found) < len(asked):
            left = [pipe for pipe in asked if pipe not in found]
            ready = wait(left, timeout=max(0.0, limit - time.monotonic()))
            for pipe in [one for one in left if one in ready] or left[:1]:
                try:
                    answer: Any = pipe.recv() if ready else "no answer"
                except EOFError:
                    answer = "a rank died"
                if not isinstance(answer, Found):
                    print(f"| {task.name} | {answer} |", flush=True)
                    return []
                found[pipe] = answer
        return [found[pipe] for pipe in asked]

    def end(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.join()


def serve(pipe: Connection, rank: int, environment: Mapping[str, str]) -> None:
    """One rank's process: a layout after the other."""
    os.environ.update(environment)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("LOG_LEVEL", "warning")
    while True:
        task = pipe.recv()
        try:
            pipe.send(measure(task, rank))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            raise


def measure(task: Task, rank: int) -> Found:
    """Build this rank's part, and time it on every canvas."""
    import torch

    from benchmarks.card import TINY
    from benchmarks.evaluation import CANVASES, Clip, engine_run

    options, config = task.options, TINY if task.options.tiny else {}
    cuda = options.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    dtype = torch.bfloat16 if cuda else torch.float32
    engine, group = _engine(task, rank, config, device, dtype)
    held = torch.cuda.memory_allocated(device) if cuda else 0
    transformer = engine._parts["transformer"]
    seconds, communicating = [], []
    folder = task.folder / f"{task.name}-{rank}"
    folder.mkdir()
    with torch.no_grad():
        for canvas in CANVASES:
            clip = Clip(canvas, options.frames, transformer.config, folder)
            seen, _ = engine_run(engine, clip.order, clip, folder / "never", options.repeats + 3)
            pairs = itertools.pairwise(seen[2:])
            seconds.append(statistics.mean(after - before for before, after in pairs))
            communicating.append(_communicating(engine, clip, folder) if cuda else 0.0)
        short = Clip(CANVASES[0], options.frames, transformer.config, folder)
        order = dataclasses.replace(short.order, evaluations=2)
        engine_run(engine, order, short, task.folder / f"{task.name}.latents")
    peak = torch.cuda.max_memory_allocated(device) if cuda else 0
    del engine, transformer
    if group is not None:
        _part(group)
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return Found(seconds, communicating, held, peak)


def _engine(task: Task, rank: int, config: Any, device: Any, dtype: Any) -> tuple[Any, Any]:
    from diffusers import MiniMaxH3Transformer3DModel

    from benchmarks.evaluation import schedulers
    from services.sampler.engine import SamplerEngine
    from services.sampler.parallel import weights
    from services.sampler.parallel.group import Group, Meeting

    settings = ModelSettings("random", device=device.type, threads=task.options.threads)
    source = Random(config, device)
    group = None
    if task.layout.ranks > 1:
        meeting = task.folder / f"{task.name}.meet"
        group = Group(Meeting(task.layout, meeting, LIMIT_S, LIMIT_S, task.recipe), rank)
        group.join(settings)
        model: Any = group.build(config, source, dtype, device)
    else:
        share = weights.Share(0, 1, None)
        model = weights.build(MiniMaxH3Transformer3DModel, config, source, dtype, device, share)
    engine = SamplerEngine(settings, task.recipe, group)
    video, audio = schedulers()
    engine.adopt({"transformer": model, "scheduler": video, "audio_scheduler": audio})
    return engine, group


def _communicating(engine: Any, clip: Any, folder: Path) -> float:
    """The part of the kernels' time that is NCCL's, waiting for the others included."""
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.evaluation import engine_run

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        engine_run(engine, clip.order, clip, folder / "never", 2)
    kernels = [(one.key, float(one.self_device_time_total)) for one in seen.key_averages()]
    total = sum(spent for _, spent in kernels)
    return sum(spent for name, spent in kernels if "nccl" in name.lower()) / max(total, 1e-9)


def _part(_group: Any) -> None:
    from xfuser.core.distributed import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def distance(folder: Path, name: str, base: str) -> float:
    """How far a layout's latents are from one card's, as a part of their length."""
    from safetensors.torch import load_file

    ours, theirs = (load_file(folder / f"{one}.latents") for one in (name, base))
    return max(float((ours[part] - theirs[part]).norm() / theirs[part].norm()) for part in theirs)


def report(options: Any) -> None:
    """Measure every layout that the cards allow, and print as each is done."""
    from benchmarks.evaluation import CANVASES

    crew = Crew(options)
    wanted = options.layouts.split(",") if options.layouts else list(LAYOUTS)
    titles = [f"{height}x{width}" for height, width in CANVASES]
    print(f"{options.device}, {options.ranks} ranks, {options.frames} frames\n")
    print("| layout | " + " | ".join(f"s, {title}" for title in titles) + " | speed-up | weights, "
          "GiB | peak, GiB | communication | distance |")  # fmt: skip
    print("|---|" + "---:|" * (len(titles) + 5), flush=True)
    alone: dict[bool, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="reelmesh-bench-") as name:
        folder = Path(name)
        for title, (layout, recipe) in LAYOUTS.items():
            if title not in wanted or layout.ranks > options.ranks:
                continue
            began = time.monotonic()
            found = crew.ask(Task(title, layout, recipe, folder, options))
            if not found:
                crew.end()
                crew = Crew(options)
                continue
            if layout == ONE:
                alone[recipe.compile] = found[0].seconds
            print(_line(title, layout, recipe, found, alone, folder), flush=True)
            print(f"<!-- {title} took {time.monotonic() - began:.0f} s -->", flush=True)
    crew.end()


def _line(
    title: str,
    layout: RankLayout,
    recipe: Recipe,
    found: list[Found],
    alone: Mapping[bool, list[float]],
    folder: Path,
) -> str:
    seconds = [max(times) for times in zip(*(one.seconds for one in found), strict=True)]
    base = alone.get(recipe.compile)
    cells = [title, *(f"{one:.3f}" for one in seconds)]
    cells.append(
        ", ".join(
            f"{one / ours:.2f} ({one / ours / layout.ranks:.0%})"
            for one, ours in zip(base, seconds, strict=True)
        )
        if base
        else ""
    )
    cells.append(f"{max(one.weights_bytes for one in found) / 2**30:.1f}")
    cells.append(f"{max(one.peak_bytes for one in found) / 2**30:.1f}")
    cells.append(", ".join(f"{one:.1%}" for one in found[0].communicating))
    one_card = "one card fused" if recipe.compile else "one card"
    known = (folder / f"{one_card}.latents").exists()
    cells.append(f"{distance(folder, title, one_card):.1e}" if known else "")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """The command line: see the module's docstring."""
    import torch

    cards = torch.cuda.device_count()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if cards else "cpu")
    parser.add_argument("--ranks", type=int, default=cards or 2, help="processes, one a card")
    parser.add_argument("--layouts", default="", help="some of: " + ", ".join(LAYOUTS))
    parser.add_argument("--frames", type=int, default=124)
    parser.add_argument("--repeats", type=int, default=3, help="evaluations timed")
    parser.add_argument("--threads", type=int, default=0, help="torch threads of each rank")
    parser.add_argument("--tiny", action="store_true", help="a small model: does it all run?")
    report(parser.parse_args())


if __name__ == "__main__":
    main()
