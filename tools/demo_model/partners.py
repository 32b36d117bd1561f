"""Finds other clips of the same object or the same sound: the references of a training."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from tools.demo_model.drawing import Clip


def look(clip: Clip) -> Hashable:
    if len(clip.scene.objects) > 1:
        return None
    return clip.scene.objects[0].colour, clip.scene.objects[0].shape


def partners(
    clips: Sequence[Clip], kind: Callable[[Clip], Hashable], device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Draws, for numbers of clips, numbers of random clips of the same kind."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, clip in enumerate(clips):
        members[kind(clip)].append(number)
    order: list[int] = []
    starts: dict[Hashable, int] = {}
    for name, numbers in members.items():
        starts[name] = len(order)
        order += numbers
    kinds = [kind(clip) for clip in clips]
    start = torch.tensor([starts[name] for name in kinds], device=device)
    size = torch.tensor([len(members[name]) for name in kinds], device=device)
    listed = torch.tensor(order, device=device)

    def pick(numbers: Tensor) -> Tensor:
        share = torch.rand(len(numbers), device=device) * size[numbers]
        return listed[start[numbers] + share.long().minimum(size[numbers] - 1)]

    return pick
