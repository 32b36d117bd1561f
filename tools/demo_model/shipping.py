"""Saves finished weights as they are shipped, and packs what a remote run has to bring back."""

import argparse
import tarfile
from pathlib import Path
from typing import Any

STAGES = ("text", "video_vae", "audio_vae", "transformer")


def ship(model: Any, folder: Path) -> None:
    """Save a model in fp16 and leave it with the same rounded weights in fp32.

    What follows is then trained, and measured, on exactly the weights of the checkpoint. fp16 keeps
    three bits more than bf16, and nothing here comes near its bounds.
    """
    model.half().save_pretrained(folder)
    model.float()


def pack(run: Path, out: Path) -> list[Path]:
    """One tar a stage in `out`, each under 16 MiB, with its weights, log and sample sheet."""
    out.mkdir(parents=True, exist_ok=True)
    packed = []
    for stage in STAGES:
        if not (run / stage).is_dir():
            continue
        names = [stage, f"{stage}.jsonl", f"{stage}.png"]
        names += {"text": ["tokenizer"], "transformer": ["statistics.json"]}.get(stage, [])
        packed.append(out / f"{stage}.tar")
        with tarfile.open(packed[-1], "w") as tar:
            for name in names:
                if (run / name).exists():
                    tar.add(run / name, name)
    return packed


def main() -> None:
    """The command line: `python -m tools.demo_model.shipping --run DIR --out FOLDER`."""
    parser = argparse.ArgumentParser(description="Pack the stages of a run, one tar each.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--out", type=Path, required=True, help="folder to put the tars in")
    options = parser.parse_args()
    for path in pack(options.run, options.out):
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
