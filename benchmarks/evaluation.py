"""Seconds per evaluation of the full-width transformer on one card, through the whole engine.

Random weights are built on the card, so no checkpoint is needed. In the same run: diffusers' own
forward, eager and compiled, and the floor that the card's own rates set. Prints Markdown. Run:
`python -m benchmarks.evaluation`; `--tiny` runs the same on a small model, on any device.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import MiniMaxH3Scheduler
from safetensors.torch import load_file, save_file

from benchmarks.card import SEED, TINY, build, count_flops, rates, seconds_of, wait
from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, Watch
from services.sampler.engine import SamplerEngine
from services.sampler.fused.acceleration import Accelerated
from services.sampler.fused.attention import pick_attention, set_attention
from services.sampler.loop.conditioning import Conditioning, read_conditioning
from services.sampler.loop.denoise import evaluate_by
from services.sampler.loop.rows import draw_rows
from services.sampler.loop.schedule import Schedule
from services.sampler.loop.sequence import Sequence, Shape
from services.sampler.loop.snapshot import Origin, Snapshot
from services.sampler.order import SampleOrder
from services.sampler.recipe import Recipe

CANVASES = ((416, 736), (768, 1344))
FRAMES, TEXT_ROWS = 124, 200
ROUNDS = 2
STEPS = 50  # the released schedule, of which a few evaluations are timed


def schedulers() -> tuple[Any, Any]:
    """The released model's: (video, audio)."""
    scheduler: Any = MiniMaxH3Scheduler
    return scheduler(shift=12.0), scheduler(shift=3.0)


class Clip:
    """One canvas: the conditioning file, the order and the sequence of its rows."""

    def __init__(self, canvas: tuple[int, int], frames: int, config: Any, folder: Path) -> None:
        self.canvas = canvas
        self.path = folder / f"conditioning-{canvas[0]}"
        generator = torch.Generator().manual_seed(SEED)
        embeds = torch.randn(1, TEXT_ROWS, config.text_dim, generator=generator)
        tags = torch.ones(TEXT_ROWS, dtype=torch.long)
        save_file({"prompt_embeds": embeds, "text_token_tags": tags}, self.path)
        self.order = SampleOrder("t2va", *canvas, frames, SEED, STEPS - 1)
        self.shape = Shape.of(*canvas, frames, config)
        latents = (self.shape.height, self.shape.width)
        self.conditioning: Conditioning = read_conditioning(self.path, "t2va", latents, config)
        self.sequence = Sequence.of(self.conditioning, self.shape)


def diffusers_seconds(model: Any, clip: Clip, repeats: int) -> float:
    """Seconds per evaluation of diffusers' own forward and scheduler steps."""
    device, pair = model.device, schedulers()
    schedule = Schedule.of(pair, STEPS - 1)
    rows = draw_rows(clip.shape, clip.conditioning, SEED).to(device)
    embeds = clip.conditioning.prompt_embeds.to(device)
    evaluate = evaluate_by(model, clip.sequence, schedule, embeds)

    def once() -> None:
        steppers = schedule.steppers(pair, 5, device)
        velocities = evaluate(5, rows.video, rows.audio)
        for stepper, velocity, sample in zip(
            steppers, velocities, (rows.video, rows.audio), strict=True
        ):
            stepper.step(velocity.float(), stepper.timesteps[5], sample, return_dict=False)

    with torch.no_grad():
        return seconds_of(once, device, repeats)


def distance(model: Any, clip: Clip, attention: str) -> float:
    """How far the engine's velocities are from diffusers' eager ones: of their length."""
    device, pair = model.device, schedulers()
    schedule = Schedule.of(pair, STEPS - 1)
    rows = draw_rows(clip.shape, clip.conditioning, SEED).to(device)
    embeds = clip.conditioning.prompt_embeds.to(device)
    with torch.no_grad():
        theirs, _ = evaluate_by(model, clip.sequence, schedule, embeds)(5, rows.video, rows.audio)
        fast = Accelerated(model, attention).begin(clip.sequence, schedule, embeds)
        ours, _ = fast(5, rows.video, rows.audio)
    return float((ours - theirs).norm() / theirs.norm())


def engine_run(
    engine: SamplerEngine, order: SampleOrder, clip: Clip, output: Path, stop: int = 0
) -> tuple[list[float], dict[str, float]]:
    """When each evaluation was reported, and the phases; cancelled after `stop` evaluations."""
    seen: list[float] = []

    def report(_phase: str, done: int, _total: int) -> None:
        seen.append(time.perf_counter())
        if stop and done == stop:
            watch.cancel()

    watch = Watch(report)
    try:
        timings = engine.sample(order, clip.path, output, watch)
    except Cancelled:
        timings = {}
    return seen, timings


def engine_seconds(engine: SamplerEngine, clip: Clip, folder: Path, repeats: int) -> float:
    """Seconds per evaluation of a run through the engine, snapshots as by default."""
    order = dataclasses.replace(clip.order, snapshot=folder / "timed.safetensors")
    seen, _ = engine_run(engine, order, clip, folder / "latents", repeats + 3)
    # The first reports are the beginning and what compiles; the last evaluation saves at the end.
    steps = [after - before for before, after in itertools.pairwise(seen[2:])]
    return statistics.mean(steps)


def resume_costs(engine: SamplerEngine, clip: Clip, folder: Path) -> dict[str, Any]:
    """What a snapshot costs and what going on from one costs, and that the latents are the same."""
    order = dataclasses.replace(clip.order, evaluations=4)
    snapshot = folder / "half.safetensors"
    engine_run(engine, order, clip, folder / "whole")
    engine_run(engine, dataclasses.replace(order, snapshot=snapshot), clip, folder / "cut", 3)
    resumed = dataclasses.replace(order, resume=snapshot)
    _, timings = engine_run(engine, resumed, clip, folder / "resumed")
    whole, again = load_file(folder / "whole"), load_file(folder / "resumed")
    pair = schedulers()
    rows = draw_rows(clip.shape, clip.conditioning, SEED).to(engine.device)
    half = Snapshot(Origin("", ""), Schedule.of(pair, STEPS - 1), 5, rows)
    return {
        "bytes": snapshot.stat().st_size,
        "write_s": seconds_of(lambda: half.write(folder / "w.safetensors"), engine.device, 5),
        "resume_s": timings["prepare"] + timings["resume"],
        "equal": all(torch.equal(whole[name], again[name]) for name in whole),
    }


def start_seconds(began: float, config: dict[str, Any], options: Any) -> dict[str, float]:
    """In a process of its own: seconds from its start to the end of its first evaluation."""
    imported = time.time()
    device, dtype = torch.device(options.device), _dtype(options)
    model = build(config, device, dtype)
    wait(device)
    built = time.time()
    with tempfile.TemporaryDirectory() as name:
        clip = Clip(CANVASES[0], options.frames, model.config, Path(name))
        engine = make_engine(model, options, compiled=True)
        engine_run(engine, clip.order, clip, Path(name) / "latents", 1)
    ended = time.time()
    return {"import": imported - began, "build": built - imported, "first": ended - built}


def make_engine(model: Any, options: Any, *, compiled: bool) -> SamplerEngine:
    """An engine around a model that is there already."""
    settings = ModelSettings("random", device=options.device)
    engine = SamplerEngine(settings, Recipe(compile=compiled))
    video, audio = schedulers()
    engine.adopt({"transformer": model, "scheduler": video, "audio_scheduler": audio})
    return engine


def start_in_process(options: Any, cache: Path) -> dict[str, float]:
    """`start_seconds` in a fresh process, whose kernels are kept in `cache`."""
    command = [sys.executable, "-m", "benchmarks.evaluation", "--start", str(time.time())]
    command += ["--device", options.device, "--frames", str(options.frames)]
    command += ["--tiny"] * options.tiny
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(options: Any) -> None:
    """Measure everything and print it."""
    device, dtype = torch.device(options.device), _dtype(options)
    config = TINY if options.tiny else {}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {dtype}, {options.frames} frames\n", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        starts = [(kind, start_in_process(options, Path(cache))) for kind in ("cold", "warm")]
    model = build(config, device, dtype)
    with tempfile.TemporaryDirectory() as folder:
        clips = [Clip(one, options.frames, model.config, Path(folder)) for one in CANVASES]
        _report_evaluations(model, clips, Path(folder), options)
    print("\n| from process start to the end of the first evaluation | import | build | first |")
    print("|---|---:|---:|---:|")
    for kind, start in starts:
        cells = " | ".join(f"{start[part]:.1f} s" for part in ("import", "build", "first"))
        print(f"| {kind} kernel cache | {cells} |")


def _report_evaluations(model: Any, clips: list[Clip], folder: Path, options: Any) -> None:
    device, dtype, repeats = model.device, _dtype(options), options.repeats
    table: dict[str, list[float]] = {}
    card = [rates(model.config, clip.sequence.length, device, dtype) for clip in clips]
    floors = []
    for clip, (matrix_rate, attention_rate) in zip(clips, card, strict=True):
        matrices, attention = count_flops(model.config, clip.sequence.length)
        floors.append(matrices / matrix_rate + attention / attention_rate)
    table["diffusers eager"] = [diffusers_seconds(model, clip, min(repeats, 3)) for clip in clips]
    chosen = pick_attention("auto", device)
    far = distance(model, clips[0], chosen)
    set_attention(model, chosen)
    model.compile_repeated_blocks(fullgraph=True, dynamic=False)
    compiled = "diffusers compiled, cuDNN attention"
    engine = make_engine(model, options, compiled=True)
    # In turn, since a card that is warm runs slower than one that was idle.
    pairs = [
        [
            (diffusers_seconds(model, clip, repeats), engine_seconds(engine, clip, folder, repeats))
            for _ in range(ROUNDS)
        ]
        for clip in clips
    ]
    table[compiled] = [statistics.mean(theirs for theirs, _ in rounds) for rounds in pairs]
    table["reelmesh engine"] = [statistics.mean(ours for _, ours in rounds) for rounds in pairs]
    print("| s per evaluation | " + " | ".join(_title(clip) for clip in clips) + " |")
    print("|---|" + "---:|" * len(clips))
    for name, measured in table.items():
        cells = (
            f"{one:.3f} ({one / best:.3f} of compiled, {one / floor:.3f} of the floor)"
            for one, best, floor in zip(measured, table[compiled], floors, strict=True)
        )
        print(f"| {name} | " + " | ".join(cells) + " |")
    cells = (
        f"{floor:.3f} (matrices {rate / 1e12:.0f}, attention {attention / 1e12:.0f} TFLOP/s)"
        for floor, (rate, attention) in zip(floors, card, strict=True)
    )
    print("| floor of the card's own rates | " + " | ".join(cells) + " |\n", flush=True)
    print(f"The engine's velocities are {far:.1e} of their length from diffusers' eager ones.\n")
    print("| a run cut short | " + " | ".join(_title(clip) for clip in clips) + " |")
    print("|---|" + "---:|" * len(clips))
    costs = [resume_costs(engine, clip, folder) for clip in clips]
    for title, line in (
        ("snapshot", "{bytes:,} bytes"),
        ("writing one, synced", "{write_s:.3f} s"),
        ("going on from one, before the first evaluation", "{resume_s:.3f} s"),
        ("the latents equal those of an unbroken run, bit by bit", "{equal}"),
    ):
        print(f"| {title} | " + " | ".join(line.format(**cost) for cost in costs) + " |")
    if device.type == "cuda":
        print(f"\nPeak memory {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB.")


def _title(clip: Clip) -> str:
    return f"{clip.canvas[0]}x{clip.canvas[1]} ({clip.sequence.length:,} rows)"


def _dtype(options: Any) -> torch.dtype:
    return torch.bfloat16 if options.device.startswith("cuda") else torch.float32


def main() -> None:
    """The command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--repeats", type=int, default=4, help="evaluations timed a round")
    parser.add_argument("--tiny", action="store_true", help="a small model: does it all run?")
    parser.add_argument("--start", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start is None:
        report(options)
    else:
        config = TINY if options.tiny else {}
        print(json.dumps(start_seconds(options.start, config, options)))


if __name__ == "__main__":
    main()
