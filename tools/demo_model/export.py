"""Puts the stages of a training together: a checkpoint in diffusers' layout, 16 bits a weight."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from tools.demo_model import card, models
from tools.demo_model.shipping import ship
from tools.tiny_models import untyped

MOST_BYTES = 48_000_000
_INDEX = "modular_model_index.json"
_INDEX_PATH = "."  # the components lie beside the index; loading from a folder reads them there


def export(run: Path, out: Path) -> None:
    """Write the checkpoint at `out` from the folder of a training; `out` is replaced."""
    draft = out.with_name(f".{out.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    pipeline = untyped("diffusers").MiniMaxH3Blocks().init_pipeline()
    pipeline.update_components(**_parts(run))
    pipeline.update_components(
        canvas_short_edge=128,
        canvas_max_pixels=128 * 128,
        # A reference picture is read as the training showed it, at the size of a clip.
        reference_image_short_edge=128,
    )
    pipeline.save_pretrained(str(draft), overwrite_modular_index=True)
    _make_relocatable(draft / _INDEX)
    _forget_origin(draft)
    shutil.rmtree(draft / "transformer_ref")
    facts = {"default_height": 128, "default_width": 128, "default_evaluations": 8}
    (draft / "reelmesh.json").write_text(json.dumps(facts, indent=2) + "\n")
    card.write(draft)
    size = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise SystemExit(f"{draft} has {size} bytes, more than {MOST_BYTES}")
    shutil.rmtree(out, ignore_errors=True)
    draft.rename(out)
    print(f"{out}: {size:,} bytes")


def _parts(run: Path) -> dict[str, Any]:
    import torch

    diffusers, transformers = untyped("diffusers"), untyped("transformers")
    known = json.loads((run / "statistics.json").read_text())
    tokenizer = transformers.Qwen2Tokenizer.from_pretrained(run / "tokenizer")
    vae = diffusers.AutoencoderKLMiniMaxH3.from_pretrained(run / "video_vae")
    vae.register_to_config(latents_mean=known["video_mean"], latents_std=known["video_std"])
    audio_vae = diffusers.AutoencoderKLMiniMaxH3Audio.from_pretrained(run / "audio_vae")
    audio_vae.register_to_config(latents_mean=known["audio_mean"], latents_std=known["audio_std"])
    denoiser = diffusers.MiniMaxH3Transformer3DModel.from_pretrained(run / "transformer")
    encoder = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
        run / "text", dtype=torch.float16
    )
    return {
        "text_encoder": encoder,
        "tokenizer": tokenizer,
        "processor": models.processor(tokenizer),
        "transformer": denoiser.half(),
        # One training serves all modes.
        "transformer_ref": denoiser.half(),
        "scheduler": diffusers.MiniMaxH3Scheduler(shift=12.0),
        "audio_scheduler": diffusers.MiniMaxH3Scheduler(shift=3.0),
        "vae": vae.half(),
        "audio_vae": audio_vae.half(),
    }


def _make_relocatable(index: Path) -> None:
    """The saved index names the folder it was written to; ours must load wherever it lies.

    It gives `transformer_ref` the place of `transformer` besides: the index is what loaders go by,
    and a second copy of the same weights would halve the size that one of them may have.
    """
    entries = json.loads(index.read_text())
    entries["transformer_ref"][2]["subfolder"] = entries["transformer"][2]["subfolder"]
    for entry in entries.values():
        if isinstance(entry, list) and entry[2].get("pretrained_model_name_or_path"):
            entry[2]["pretrained_model_name_or_path"] = _INDEX_PATH
    index.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")


def _forget_origin(draft: Path) -> None:
    """A component's config names the folder that it was loaded from: nobody else's business."""
    for path in draft.glob("*/config.json"):
        config = json.loads(path.read_text())
        if config.pop("_name_or_path", None) is not None:
            path.write_text(json.dumps(config, indent=2) + "\n")


def random_run(run: Path) -> None:
    """The stages of a training that never happened, for tests: right in shape, random inside."""
    import torch

    from tools.demo_model import tokens

    torch.manual_seed(0)
    tokenizer = tokens.build()
    tokenizer.save_pretrained(run / "tokenizer")
    ship(models.text_encoder(tokenizer), run / "text")
    ship(models.video_vae(), run / "video_vae")
    ship(models.audio_vae(), run / "audio_vae")
    ship(models.transformer(), run / "transformer")
    widths = (("video", models.VIDEO_CHANNELS), ("audio", models.AUDIO_CHANNELS))
    known = {
        f"{name}_{what}": [value] * width
        for name, width in widths
        for what, value in (("mean", 0.0), ("std", 1.0))
    }
    (run / "statistics.json").write_text(json.dumps(known))


def main() -> None:
    """The command line: `python -m tools.demo_model.export --run DIR --out FOLDER`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to make")
    options = parser.parse_args()
    export(options.run, options.out)


if __name__ == "__main__":
    main()
