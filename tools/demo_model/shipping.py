"""Saves finished weights as they are shipped, and packs what a remote run has to bring back."""

import argparse
import shutil
import tarfile
from pathlib import Path
from typing import Any

NAMES = (
    "text",
    "tokenizer",
    "video_vae",
    "video_vae.json",
    "audio_vae",
    "statistics.json",
    "transformer",
)
_MOST_TAR_BYTES = 15_000_000
_SHARD = "14MB"


def ship(model: Any, folder: Path, shard: str = _SHARD) -> None:
    """Save a model in fp16 and leave it with the same rounded weights in fp32.

    What follows is then trained, and measured, on exactly the weights of the checkpoint. fp16 keeps
    three bits more than bf16, and nothing here comes near its bounds.
    """
    stored = model.state_dict().keys()
    computed = {name: value.clone() for name, value in model.named_buffers() if name not in stored}
    draft = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    model.half().save_pretrained(draft, max_shard_size=shard)
    model.float()
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    # Rotary frequencies are not stored: whoever loads the model computes them in fp32.
    for name, value in model.named_buffers():
        if name in computed:
            value.copy_(computed[name])


def pack(run: Path, out: Path) -> list[Path]:
    """All finished weights, logs and sample sheets of a run in a few tars in `out`.

    Each has at most 15 MB, for ways back that limit a file; unpack them into one folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = [path for name in NAMES for path in _files(run / name)]
    files += sorted([*run.glob("*.jsonl"), *run.glob("*.png")])
    packed: list[Path] = []
    room = 0
    for path in files:
        size = path.stat().st_size + 4096  # its header, and the tar's own ends
        if size > room:
            packed.append(out / f"run-{len(packed)}.tar")
            tarfile.open(packed[-1], "w").close()
            room = _MOST_TAR_BYTES
        room -= size
        with tarfile.open(packed[-1], "a") as tar:
            tar.add(path, path.relative_to(run).as_posix())
    return packed


def _files(place: Path) -> list[Path]:
    """A file, or all files of a folder; none of what is not there."""
    return sorted(path for path in [place, *place.rglob("*")] if path.is_file())


def main() -> None:
    """The command line: `python -m tools.demo_model.shipping --run DIR --out FOLDER`."""
    parser = argparse.ArgumentParser(description="Pack what a run has made into small tars.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--out", type=Path, required=True, help="folder to put the tars in")
    options = parser.parse_args()
    for path in pack(options.run, options.out):
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
