"""How the model reads a prompt together with its keyframes or references, as tokens and rows."""

from collections.abc import Sequence
from typing import Any

from tools.demo_model.models import PICTURE_TOKENS
from tools.tiny_models import untyped

REFERENCE_FRAMES = 39  # of a reference video in training: 12 latents
_TEXT_TAG = 1
_PRESENTED: dict[str, tuple[str, ...]] = {
    "t2va": (),
    "first": ("image",),
    "last": ("image",),
    "both": ("image", "image"),
    "image": ("image",),
    "video": ("video",),
    "sound": ("image", "audio"),
}
MODES = tuple(_PRESENTED)
"""t2va; fl2va with the first, the last, both keyframes; ref2va with an image, a video, a sound."""


def references(mode: str) -> list[Any]:
    """The library's reference objects of a mode, without media: what a layout reads of them."""
    classes = untyped("diffusers.modular_pipelines.minimax_h3.references")
    empty = {
        "image": lambda: classes.MiniMaxH3ImageReference(image=None),
        "video": lambda: classes.MiniMaxH3VideoReference(frames=[], fps=24.0),
        "audio": lambda: classes.MiniMaxH3AudioReference(audio=None),
    }
    return [empty[kind]() for kind in _PRESENTED[mode]]


def present(tokenizer: Any, prompt: str, mode: str) -> tuple[list[int], list[int]]:
    """Token ids and modality tags of a prompt in a mode, by the library's own code."""
    encoders = untyped("diffusers.modular_pipelines.minimax_h3.encoders")
    step = encoders.MiniMaxH3Ref2VATextEncoderStep()
    kinds = _PRESENTED[mode]
    videos = kinds.count("video")
    blocks = _video_blocks()
    ids, tags = step._build_presentation(
        tokenizer,
        prompt,
        references(mode),
        [PICTURE_TOKENS] * kinds.count("image"),
        [PICTURE_TOKENS] * videos,
        [blocks] * videos,
    )
    return ids, tags


def present_all(
    tokenizer: Any, prompts: Sequence[str], mode: str
) -> tuple[list[list[int]], list[list[int]]]:
    """`present` for many prompts at once: what stands before a prompt is the same for all."""
    before, tags = present(tokenizer, "", mode)
    said = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    return [before + ids for ids in said], [tags + [_TEXT_TAG] * len(ids) for ids in said]


def _video_blocks() -> list[float]:
    """Seconds that label the pairs of frames of a reference video, read at two a second."""
    count = -(-REFERENCE_FRAMES // 12)
    times = [number / 2 for number in range(count)]
    times += times[-1:] * (count % 2)
    return [(times[at] + times[at + 1]) / 2 for at in range(0, len(times), 2)]
