"""Builds a small MiniMax-H3 checkpoint with the real model classes and random weights.

Everything that can run without 120 GB of weights runs on it: tests, the demo, a first look. It has
the released checkpoint's folder layout and its structural facts (51 text layers, three modality
tags, 17n+5 frames, 24 and 32 latent channels), so whatever loads it loads the released one. The
weights mean nothing; their scales are chosen so that a clip is an abstract moving picture with an
audible soundtrack and so that a mistake in any layer shows in the output. Two builds with the same
library versions are identical byte for byte.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools import tiny_models as models

SEED = 20_260_101

_INDEX_PATH = "."  # the components lie beside the index; loading from a folder reads them there


def _write(folder: Path) -> int:
    """Write every component and the index into `folder`; returns the number of parameters."""
    import torch

    diffusers = models.untyped("diffusers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        text_encoder, tokenizer, processor = models.text_parts()
        parts = {
            "text_encoder": text_encoder,
            "tokenizer": tokenizer,
            "processor": processor,
            "transformer": models.transformer(),
            "scheduler": diffusers.MiniMaxH3Scheduler(shift=12.0),
            "audio_scheduler": diffusers.MiniMaxH3Scheduler(shift=3.0),
            "vae": models.video_vae(),
            "audio_vae": models.audio_vae(),
            "transformer_ref": models.transformer(),
        }
    pipeline = diffusers.MiniMaxH3Blocks().init_pipeline()
    pipeline.update_components(**parts)
    pipeline.update_components(
        canvas_short_edge=128, canvas_max_pixels=128 * 128, reference_image_short_edge=64
    )
    pipeline.save_pretrained(str(folder), overwrite_modular_index=True)
    _make_relocatable(folder / "modular_model_index.json")
    facts = {"default_height": 128, "default_width": 128, "default_evaluations": 8}
    (folder / "reelmesh.json").write_text(json.dumps(facts, indent=2) + "\n")
    built = (part for part in parts.values() if isinstance(part, torch.nn.Module))
    return sum(weight.numel() for model in built for weight in model.parameters())


def _make_relocatable(index: Path) -> None:
    """The saved index names the folder it was written to; ours must load wherever it lies."""
    entries = json.loads(index.read_text())
    for entry in entries.values():
        if isinstance(entry, list) and entry[2].get("pretrained_model_name_or_path"):
            entry[2]["pretrained_model_name_or_path"] = _INDEX_PATH
    index.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")


def size_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def build(out: Path, force: bool = False) -> int:
    """Build the checkpoint at `out`; returns its number of parameters.

    It is written beside `out` and renamed, so that `out` is never half written. An existing `out`
    is replaced only with `force`, else `FileExistsError`.
    """
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists: keep it, or pass --force to build it again")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        parameters = _with_one_thread(lambda: _write(beside))
        beside.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        beside.replace(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return parameters


def _with_one_thread(work: Callable[[], int]) -> int:
    """Run `work` with one torch thread: the last bits of a sum depend on their number."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work()
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tiny_checkpoint",
        description="Build a small MiniMax-H3 checkpoint with the real classes, random weights.",
        epilog="example: python -m tools.tiny_checkpoint --out checkpoints/tiny",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--force", action="store_true", help="replace the folder if it exists")
    arguments = parser.parse_args()
    try:
        parameters = build(arguments.out, arguments.force)
    except FileExistsError as error:
        sys.exit(str(error))
    print(f"{arguments.out}: {parameters:,} parameters, {size_bytes(arguments.out):,} bytes")


if __name__ == "__main__":
    main()
