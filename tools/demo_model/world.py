"""Renders clips of the demo world in torch, batched, on any device: the training data itself."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from tools.demo_model.attributes import FPS, FRAMES, SAMPLE_RATE, SAMPLES, SHAPES, SIDE
from tools.demo_model.drawing import Clip
from tools.demo_model.paths import trace
from tools.demo_model.sounds import mono

_EDGE = 1.4  # pixels on either side of an outline over which it fades: sharp, without steps
# Circumradius over circle radius, so that all shapes of one size look equally large.
_POINTED = 1.38
_SQUARE = 0.886
_STAR_INNER = 0.46


def render_video(clips: list[Clip], frames: Tensor) -> Tensor:
    """Pictures of a batch of clips: (B, 3, F, 128, 128) fp32 in [-1, 1].

    `frames` is (B, F) or (F,): the numbers of the frames to render, 0 to 123, on the device to use.
    """
    device = frames.device
    if frames.ndim == 1:
        frames = frames.expand(len(clips), -1)
    paths = trace(clips, frames.to(torch.float32) / FPS)
    at = (torch.arange(SIDE, device=device, dtype=torch.float32) + 0.5) / SIDE
    row, column = torch.meshgrid(at, at, indexing="ij")
    video = _ground(clips, row, column)[:, :, None].repeat(1, 1, frames.shape[1], 1, 1)
    shapes = [[each.shape for each in clip.scene.objects] for clip in clips]
    colours = _colours(clips, device)
    for index in range(paths.x.shape[1]):
        across = (column - paths.x[:, index, :, None, None]) * SIDE  # (B, F, H, W)
        along = (row - paths.y[:, index, :, None, None]) * SIDE
        radius = paths.radius[:, index, :, None, None]
        cover = _cover(across, along, radius, [(names * 2)[index] for names in shapes])[:, None]
        paint = colours[:, index, :, None, None, None]
        video = video + cover * (paint - video)
    return video * 2 - 1


def outline(shape: str, across: Tensor, along: Tensor, radius: Tensor) -> Tensor:
    """Signed distance-like pixels from a shape's outline, negative inside.

    `across` and `along` are pixels from its centre to the right and down, `radius` its size.
    """
    if shape == "circle":
        return torch.hypot(across, along) - radius
    if shape == "square":
        return torch.maximum(across.abs(), along.abs()) - _SQUARE * radius
    pointed = _POINTED * radius
    if shape == "triangle":
        slanted = across.abs() * math.cos(math.pi / 6) - along * 0.5
        return torch.maximum(slanted, along) - pointed / 2
    # A star is ten mirrored slices of 36 degrees, each cut by the line from a tip to a notch.
    sector = math.pi / 5
    angle = torch.atan2(across, -along).abs()
    angle = (torch.remainder(angle + sector, 2 * sector) - sector).abs()
    far = torch.hypot(across, along)
    tip_x, notch = 1.0, (_STAR_INNER * math.cos(sector), _STAR_INNER * math.sin(sector))
    edge = (notch[0] - tip_x, notch[1])
    length = math.hypot(*edge)
    return (
        edge[1] * (far * torch.cos(angle) - pointed) - edge[0] * far * torch.sin(angle)
    ) / length


def render_audio(clips: list[Clip], device: torch.device | str = "cpu") -> Tensor:
    """Stereo sound of a batch of clips: (B, 2, 165600) fp32 at 32 kHz.

    Equal-power pan follows the first object: left and right are cos and sin of a quarter turn.
    """
    wave = torch.stack([mono(clip, device) for clip in clips])  # (B, samples)
    steps = torch.arange(FRAMES + 1, device=device, dtype=torch.float32) / FPS
    x = trace(clips, steps.expand(len(clips), -1)).x[:, 0]  # (B, F + 1)
    each = SAMPLE_RATE / FPS
    place = torch.arange(SAMPLES, device=device, dtype=torch.float32) / each
    before = place.long().clamp(max=FRAMES - 1)
    x = torch.lerp(x[:, before], x[:, before + 1], (place - before).clamp(max=1.0))
    turn = pan_share(x) * math.pi / 2
    return torch.stack((torch.cos(turn) * wave, torch.sin(turn) * wave), dim=1)


def pan_share(x: Tensor) -> Tensor:
    """0..1 from the left to the right channel for a place 0..1 across the picture."""
    return ((x - 0.5) / 0.64 + 0.5).clamp(0.02, 0.98)


def _cover(across: Tensor, along: Tensor, radius: Tensor, shapes: list[str]) -> Tensor:
    """How much of each pixel a shape covers, (B, F, H, W) in 0..1."""
    cover = torch.zeros_like(across)
    for shape in SHAPES:
        numbers = [number for number, each in enumerate(shapes) if each == shape]
        if numbers:
            chosen = torch.tensor(numbers, device=across.device)
            apart = outline(shape, across[chosen], along[chosen], radius[chosen])
            soft = (0.5 - apart / (2 * _EDGE)).clamp(0.0, 1.0)
            cover[chosen] = soft * soft * (3 - 2 * soft) * (radius[chosen] > 0)
    return cover


def _ground(clips: list[Clip], row: Tensor, column: Tensor) -> Tensor:
    """(B, 3, H, W) in 0..1."""
    device = row.device
    ends = torch.tensor([clip.ground for clip in clips], device=device)  # (B, 2, 3)
    angle = torch.tensor([clip.ground_angle for clip in clips], device=device)[:, None, None]
    share = 0.5 + ((column - 0.5) * torch.cos(angle) + (row - 0.5) * torch.sin(angle)) / math.sqrt(
        2
    )
    start, end = ends[:, 0, :, None, None], ends[:, 1, :, None, None]
    return start + (end - start) * share[:, None]


def _colours(clips: list[Clip], device: torch.device) -> Tensor:
    rows = [torch.tensor(clip.colours) for clip in clips]
    return torch.stack([pad(row, (0, 0, 0, 2 - len(row))) for row in rows]).to(device)
