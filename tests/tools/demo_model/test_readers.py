"""The readers of the score are right on clips whose truth is known."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from tools.demo_model import drawing, readers
from tools.demo_model.attributes import FRAMES, SAMPLE_RATE
from tools.demo_model.world import render_audio, render_video

_EACH = {1: 100, 2: 40}


@cache
def _readings(objects: int) -> list[readers.Reading]:
    """Readings of rendered held-out clips."""
    source = random.Random(objects)
    found = []
    for _ in range(_EACH[objects]):
        clip = drawing.place(drawing.draw_held_out_scene(source, objects=objects), source)
        frames = render_video([clip], torch.arange(0, FRAMES, 3))[0]
        audio = render_audio([clip])[0].double().numpy()
        # Every third frame, held for three: a third of the work and the same clock.
        pictures = ((frames + 1) * 127.5).round().byte().permute(1, 2, 3, 0).numpy()
        found.append(
            readers.read(pictures.repeat(3, axis=0)[:FRAMES], audio, SAMPLE_RATE, clip.scene)
        )
    return found


def test_single_objects_are_read_right() -> None:
    """Colour, shape, motion and sound of at least 99 of 100 single objects."""
    readings = _readings(1)
    for name in ("colour", "shape", "motion", "sound"):
        assert np.mean([getattr(each, name) for each in readings]) >= 0.99, name


def test_pairs_are_read_right() -> None:
    """All four of at least 98 of 100 pairs."""
    readings = _readings(2)
    for name in ("colour", "shape", "motion", "sound"):
        assert np.mean([getattr(each, name) for each in readings]) >= 0.98, name


def test_pan_follows_place() -> None:
    """Pan and place of every moving, sounding object correlate."""
    pans = [each.pan for each in _readings(1) if each.pan is not None]
    assert len(pans) > 10
    assert min(pans) > 0.97


def test_a_wrong_scene_is_not_read() -> None:
    """A clip compared with another colour, shape, motion and sound fails in all of them."""
    source = random.Random(5)
    clip = drawing.place(drawing.draw_training_scene(source, objects=1), source)
    shown = clip.scene
    other = drawing.draw_training_scene(source, objects=1)
    while (
        {other.objects[0].colour, other.objects[0].shape}
        & {shown.objects[0].colour, shown.objects[0].shape}
        or other.motion == shown.motion
        or other.sound == shown.sound
    ):
        other = drawing.draw_training_scene(source, objects=1)
    video = render_video([clip], torch.arange(FRAMES))[0]
    pictures = ((video + 1) * 127.5).round().byte().permute(1, 2, 3, 0).numpy()
    audio = render_audio([clip])[0].double().numpy()
    reading = readers.read(pictures, audio, SAMPLE_RATE, other)
    assert not (reading.colour or reading.shape or reading.motion or reading.sound)
    assert readers.read(pictures, audio, SAMPLE_RATE, replace(shown)).all_four


def test_keyframe_psnr() -> None:
    """Equal pictures are far above any bound, a difference of one step in 255 is 48 dB."""
    picture = np.full((8, 8, 3), 100, dtype=np.uint8)
    assert readers.keyframe_psnr(picture, picture) > 90
    assert round(readers.keyframe_psnr(picture, picture + 1)) == 48
