"""Embedded prompts of all clips, sorted so that a batch has one mode and one length of text."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.demo_model.drawing import Clip
from tools.demo_model.embedding import embed
from tools.demo_model.models import TRAINED_TEXT_LAYERS, text_encoder
from tools.demo_model.presentation import present_all
from tools.demo_model.prompts import say, say_with_reference

_CHUNK = 512
_PER_CLIP = {"t2va": 3, "first": 1, "last": 1, "both": 1, "image": 1, "video": 1, "sound": 1}
_REFERRING = ("image", "video", "sound")
_LEAST = 48  # presentations of one length; rarer lengths would be the same few clips again


@dataclass(frozen=True)
class Group:
    """Presentations of one mode and one length."""

    mode: str
    tags: tuple[int, ...]
    clips: Tensor
    """(N,) numbers of the clips they describe."""
    text: Tensor
    """(N, L, width)."""


def build(encoder: Any, tokenizer: Any, clips: Sequence[Clip]) -> dict[str, list[Group]]:
    """All groups by mode, on the encoder's device, bf16 on a GPU."""
    # The layers after the trained ones change nothing and would take most of the time.
    trunk = text_encoder(tokenizer, layers=TRAINED_TEXT_LAYERS + 1).to(encoder.device).eval()
    trunk.load_state_dict(encoder.state_dict(), strict=False)
    source = random.Random(5)
    groups: dict[str, list[Group]] = {}
    for mode, count in _PER_CLIP.items():
        numbers = [
            number
            for number, clip in enumerate(clips)
            if mode not in _REFERRING or len(clip.scene.objects) == 1
        ] * count
        said = [_prompt(clips[number], mode, source) for number in numbers]
        rows: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
        for number, ids, tags in zip(numbers, *present_all(tokenizer, said, mode), strict=True):
            rows[tuple(tags)].append((number, ids))
        least = min(_LEAST, max(len(each) for each in rows.values()))
        groups[mode] = [
            _group(trunk, mode, tags, each) for tags, each in rows.items() if len(each) >= least
        ]
    return groups


def draw(groups: Sequence[Group], size: int, source: random.Random) -> tuple[Group, Tensor]:
    """A group, in proportion to what it holds, and `size` places in it."""
    group = source.choices(groups, weights=[len(each.clips) for each in groups])[0]
    chosen = [source.randrange(len(group.clips)) for _ in range(size)]
    return group, torch.tensor(chosen, device=group.text.device)


def _prompt(clip: Clip, mode: str, source: random.Random) -> str:
    if mode in _REFERRING:
        return say_with_reference(clip.scene, mode, source)
    return say(clip.scene, source)


@torch.no_grad()
def _group(
    encoder: Any, mode: str, tags: tuple[int, ...], rows: list[tuple[int, list[int]]]
) -> Group:
    half = torch.bfloat16 if encoder.device.type == "cuda" else torch.float32
    text = [
        embed(encoder, [ids for _, ids in rows[start : start + _CHUNK]], TRAINED_TEXT_LAYERS).to(
            half
        )
        for start in range(0, len(rows), _CHUNK)
    ]
    numbers = torch.tensor([number for number, _ in rows], device=encoder.device)
    return Group(mode, tags, numbers, torch.cat(text))
