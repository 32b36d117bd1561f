"""Reads a decoded clip and says what of a scene it shows and sounds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.demo_model.attributes import BEEPS_PER_S, BOUNCE_S, FPS, Scene
from tools.demo_model.heaps import Floats
from tools.demo_model.hearing import BLOCK_S, read_beats, read_pan, read_sound
from tools.demo_model.seeing import Seen, read_objects

_STILL = 8.0  # pixels that a resting object may appear to wander
_BEAT_TOLERANCE = 0.12  # of the time between two beats
_AUDIBLE = 0.25  # of the loudest, where a pan can be read
_MOVING = 20.0  # pixels that an object must go for its pan to be worth correlating


@dataclass(frozen=True)
class Reading:
    """What of a scene was found in its clip."""

    colour: bool
    shape: bool
    motion: bool
    sound: bool
    pan: float | None
    """Correlation of pan and place of the first object; None where one of them is constant."""

    @property
    def all_four(self) -> bool:
        """Colour, shape, motion and sound."""
        return self.colour and self.shape and self.motion and self.sound


def read(frames: NDArray[np.uint8], audio: Floats, rate: int, scene: Scene) -> Reading:
    """Compare frames (F, H, W, 3) and stereo audio (2, samples) with what a scene asks for."""
    seen = read_objects(frames, len(scene.objects))
    wanted = {(each.colour, each.shape) for each in scene.objects}
    return Reading(
        colour=bool(seen) and {each.colour for each in seen} == {each[0] for each in wanted},
        shape=bool(seen) and _shapes_match(seen, scene),
        motion=bool(seen) and all(read_motion(each) == scene.motion for each in seen),
        sound=read_sound(audio, rate) == scene.sound and _beats_match(audio, rate, scene),
        pan=_pan_correlation(audio, rate, _followed(seen, scene)),
    )


def read_motion(seen: Seen) -> str:
    """One of `attributes.MOTIONS`."""
    valid = ~np.isnan(seen.x)
    x, y, area = seen.x[valid], seen.y[valid], seen.area[valid]
    # Ends as means of a few frames, so that one bad frame decides nothing.
    ratio = area[-5:].mean() / max(area[:5].mean(), 1.0)
    across, along = x[-5:].mean() - x[:5].mean(), y[-5:].mean() - y[:5].mean()
    wide, high = (np.quantile(each, 0.97) - np.quantile(each, 0.03) for each in (x, y))
    if max(wide, high) < _STILL:
        return "grow" if ratio > 1.8 else "shrink" if ratio < 1 / 1.8 else "still"
    if min(wide, high) > 3 * _STILL:
        return "orbit"
    if wide > high:
        return "right" if across > 0 else "left"
    above = y < (y.min() + y.max()) / 2
    if (above[1:] != above[:-1]).sum() >= 6:
        return "bounce"
    return "down" if along > 0 else "up"


def keyframe_psnr(frame: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> float:
    """dB between two pictures (H, W, 3)."""
    wrong = float(((frame.astype(np.float64) - wanted.astype(np.float64)) ** 2).mean())
    return float(10 * np.log10(255**2 / max(wrong, 1e-9)))


def _shapes_match(seen: list[Seen], scene: Scene) -> bool:
    """Every object has its shape, told apart by their colours where those differ."""
    if len({each.colour for each in scene.objects}) == len(scene.objects):
        shapes = {each.colour: each.shape for each in scene.objects}
        return all(shapes.get(each.colour) == each.shape for each in seen)
    return sorted(each.shape for each in seen) == sorted(each.shape for each in scene.objects)


def _followed(seen: list[Seen], scene: Scene) -> Seen | None:
    """The object that the sound follows: the first named one."""
    first = scene.objects[0]
    for each in seen:
        if (each.colour, each.shape) == (first.colour, first.shape):
            return each
    return seen[0] if seen else None


def _beats_match(audio: Floats, rate: int, scene: Scene) -> bool:
    if scene.sound != "beeps":
        return True
    beats = read_beats(audio, rate)
    every = BOUNCE_S if scene.motion == "bounce" else 1 / BEEPS_PER_S
    return abs(float(np.median(np.diff(beats))) / every - 1) < _BEAT_TOLERANCE


def _pan_correlation(audio: Floats, rate: int, seen: Seen | None) -> float | None:
    pan, level = read_pan(audio, rate)
    if seen is None or level.max() < 0.02:
        return None
    frames = np.minimum((np.arange(len(pan)) * BLOCK_S * FPS).astype(int), len(seen.x) - 1)
    x = seen.x[frames]
    heard = (level > _AUDIBLE * level.max()) & ~np.isnan(x)
    if heard.sum() < 8 or np.ptp(x[heard]) < _MOVING:
        return None
    return float(np.corrcoef(pan[heard], x[heard])[0, 1])
