"""Trains the demo checkpoint by stages: `python -m tools.demo_model.train --stage all --out DIR`.

Every stage leaves its state and its weights in the folder and goes on from there when it is run
again, so a long training can be cut into short commands. The learning rate follows the planned
minutes of the stage, not those of one command.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from tools.demo_model.pace import Pace

# Planned minutes on one large GPU, which `all` spends.
PLAN = {
    "text": 1.0, "video_vae": 8.0, "video_decoder": 4.5, "audio_vae": 4.0, "audio_decoder": 1.0,
    "latents": 1.5, "transformer": 20.0,
}  # fmt: skip
_MOST_CLIPS = 12_288


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model.train", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--stage", choices=[*PLAN, "all"], required=True)
    parser.add_argument("--minutes", type=float, help="of this command; the whole plan if missing")
    parser.add_argument("--plan", type=float, help="minutes of the stage in all of its commands")
    parser.add_argument("--steps", type=int, help="instead of minutes")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--blurred", action="store_true", help="go on from a blurred video VAE")
    parser.add_argument("--clips", type=int, default=_MOST_CLIPS, help="at most, of the latents")
    parser.add_argument("--out", type=Path, required=True, help="folder of states and weights")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Speed where it costs nothing that an fp32 run of the result would show.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    # A network that does not compile trains as it is, only slower.
    torch._dynamo.config.suppress_errors = True
    from tools.demo_model import video_training

    for stage in PLAN if options.stage == "all" else [options.stage]:
        plan = options.plan or options.minutes or PLAN[stage]
        pace = Pace(options.minutes or plan, plan, options.steps, options.eager)
        if options.stage == "all":
            pace = Pace(PLAN[stage], PLAN[stage], options.steps, options.eager)
        if stage == "latents" and not options.blurred:
            video_training.require_sharp(options.out)
        run(stage, options.out, pace, device, options.clips)


def run(stage: str, out: Path, pace: Pace, device: torch.device, clips: int) -> None:
    """One stage; the ones before it must have left their weights in `out`."""
    from tools.demo_model import (
        audio_training,
        decoder_training,
        denoiser_training,
        latents,
        text,
        video_training,
    )

    if stage == "latents":
        latents.make(out, pace.minutes, clips, device)
        return
    stages: dict[str, Callable[[Path, Pace, torch.device], None]] = {
        "text": text.train,
        "video_vae": video_training.train,
        "video_decoder": decoder_training.train_video,
        "audio_vae": audio_training.train,
        "audio_decoder": decoder_training.train_audio,
        "transformer": denoiser_training.train,
    }
    stages[stage](out, pace, device)


if __name__ == "__main__":
    main()
