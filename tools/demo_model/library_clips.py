"""Makes the clips of keyframe and reference cases with the library's own pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tools.demo_model.attributes import FRAMES, SAMPLE_RATE, SIDE
from tools.demo_model.cases import Case
from tools.demo_model.drawing import Clip
from tools.demo_model.presentation import REFERENCE_FRAMES
from tools.demo_model.world import render_audio, render_video
from tools.tiny_models import untyped

REFERENCE_S = 2.0  # seconds of a reference sound, as in training


def load(checkpoint: Path) -> Any:
    """The whole pipeline of a checkpoint, fp32, on a GPU if there is one."""
    pipeline = untyped("diffusers").ModularPipeline.from_pretrained(str(checkpoint))
    pipeline.load_components(dtype=torch.float32, pretrained_model_name_or_path=str(checkpoint))
    pipeline.set_progress_bar_config(disable=True)
    if torch.cuda.is_available():
        # Convolutions would round to TF32 there.
        torch.backends.cudnn.allow_tf32 = False
        pipeline.to("cuda")
    return pipeline


def generate(
    pipeline: Any, case: Case, evaluations: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64], int]:
    """Frames (F, H, W, 3), stereo sound (2, samples) and its rate in Hz."""
    state = pipeline(
        prompt=case.prompt,
        height=SIDE,
        width=SIDE,
        num_frames=FRAMES,
        num_inference_steps=evaluations + 1,
        generator=torch.Generator().manual_seed(case.seed),
        output_type="np",
        **_conditions(case),
    )
    videos = np.asarray(state.values["videos"])[0]
    sound = state.values["audio"][0].double().cpu().numpy()
    return (videos * 255).round().astype(np.uint8), sound, int(state.values["sampling_rate"])


def picture(clip: Clip, frame: int) -> NDArray[np.uint8]:
    """A frame of a rendered clip, (128, 128, 3)."""
    pixels: NDArray[np.uint8] = pictures(clip, [frame])[0]
    return pixels


def pictures(clip: Clip, frames: list[int]) -> NDArray[np.uint8]:
    """Frames of a rendered clip, (F, 128, 128, 3)."""
    video = (render_video([clip], torch.tensor(frames))[0] + 1) * 127.5
    pixels: NDArray[np.uint8] = video.round().byte().permute(1, 2, 3, 0).numpy()
    return pixels


def _conditions(case: Case) -> dict[str, Any]:
    from PIL import Image

    classes = untyped("diffusers.modular_pipelines.minimax_h3.references")
    if case.mode in ("first", "last", "both"):
        ends = {"image": 0, "last_image": FRAMES - 1}
        wanted = {"first": ["image"], "last": ["last_image"]}.get(case.mode, list(ends))
        return {name: Image.fromarray(picture(case.clip, ends[name])) for name in wanted}
    if case.mode == "video":
        frames = pictures(case.shown, list(range(REFERENCE_FRAMES)))
        return {"references": [classes.MiniMaxH3VideoReference(frames=frames, fps=24.0)]}
    given = [classes.MiniMaxH3ImageReference(Image.fromarray(picture(case.shown, 0)))]
    if case.mode == "sound":
        heard = render_audio([case.shown])[0, :, : round(REFERENCE_S * SAMPLE_RATE)]
        given.append(classes.MiniMaxH3AudioReference(audio=heard, sample_rate=SAMPLE_RATE))
    return {"references": given}
