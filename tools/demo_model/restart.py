"""Makes the folder of a training from an exported checkpoint, so that it can be trained on.

`python -m tools.demo_model.restart --checkpoint weights/demo --run build/demo-run`; then the stages
that should be better, `latents` before `transformer`. A checkpoint has no states of optimizers:
each stage warms up anew.
"""

import argparse
import json
import shutil
from pathlib import Path

# Where a training keeps what a checkpoint calls otherwise.
_PARTS = {
    "text_encoder": "text",
    "tokenizer": "tokenizer",
    "vae": "video_vae",
    "audio_vae": "audio_vae",
    "transformer": "transformer",
}


def restart(checkpoint: Path, run: Path) -> None:
    """Fill `run`, which must not hold a training yet, from the checkpoint."""
    taken = [name for name in _PARTS.values() if (run / name).exists()]
    if taken:
        raise SystemExit(f"{run} holds a training already ({', '.join(taken)}): name a new folder")
    for part, name in _PARTS.items():
        shutil.copytree(checkpoint / part, run / name)
    known = {
        f"{name}_{what}": json.loads((checkpoint / part / "config.json").read_text())[key]
        for name, part in (("video", "vae"), ("audio", "audio_vae"))
        for what, key in (("mean", "latents_mean"), ("std", "latents_std"))
    }
    (run / "statistics.json").write_text(json.dumps(known, indent=2) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="an exported checkpoint")
    parser.add_argument("--run", type=Path, required=True, help="the folder to make")
    options = parser.parse_args()
    restart(options.checkpoint, options.run)


if __name__ == "__main__":
    main()
