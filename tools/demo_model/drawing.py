"""Draws scenes and where exactly their objects lie, from a seed."""

import random
from dataclasses import dataclass

from tools.demo_model.attributes import (
    BOUNCE_S,
    COLOURS,
    FPS,
    GROUNDS,
    MOTIONS,
    SHAPES,
    SIZES,
    SOUNDS,
    Object,
    Scene,
    has_held_out,
)

_TWO_OBJECTS = 0.35  # of all scenes
_SMALL_OF_TWO = ("small", "medium")  # two large ones would touch


@dataclass(frozen=True)
class Clip:
    """A scene with everything that its prompt leaves open; renders to the same clip every time."""

    scene: Scene
    colours: tuple[tuple[float, float, float], ...]
    """RGB in 0..1 of each object."""
    radii: tuple[float, ...]
    """Pixels, at scale 1."""
    lanes: tuple[float, ...]
    """0..1 of each object across its motion: y of sideways ones, x of the others, in picture."""
    extent: float
    """0..1, half the way that a moving object goes."""
    phase: float
    """0..1, of an orbit's turn or of a bounce."""
    middle: tuple[float, float]
    """0..1, the shared part of all places: x, y."""
    ground: tuple[tuple[float, float, float], tuple[float, float, float]]
    """RGB in 0..1 at the two ends of the ground."""
    ground_angle: float
    """Radians."""
    noise_seed: int
    """Seed of a noise wash."""


def draw_scene(source: random.Random, *, objects: int | None = None) -> Scene:
    """Any scene, held-out combinations included; `objects` is 1, 2 or drawn."""
    count = objects or (2 if source.random() < _TWO_OBJECTS else 1)
    sizes = _SMALL_OF_TWO if count == 2 else tuple(SIZES)
    looks = source.sample([(c, s) for c in COLOURS for s in SHAPES], count)
    return Scene(
        objects=tuple(Object(c, s, source.choice(sizes)) for c, s in looks),
        motion=source.choice(MOTIONS),
        sound=source.choice(SOUNDS),
        ground=source.choice(GROUNDS),
    )


def draw_training_scene(source: random.Random, *, objects: int | None = None) -> Scene:
    """A scene without a held-out combination."""
    while has_held_out(scene := draw_scene(source, objects=objects)):
        pass
    return scene


def draw_held_out_scene(source: random.Random, *, objects: int = 1) -> Scene:
    """A scene whose objects are all in held-out combinations with their motion."""
    while True:
        scene = draw_scene(source, objects=objects)
        if all(
            has_held_out(Scene((each,), scene.motion, scene.sound, scene.ground))
            for each in scene.objects
        ):
            return scene


def place(scene: Scene, source: random.Random) -> Clip:
    """Fill in what the prompt leaves open: exact colours, sizes, places, phase and ground."""

    def near(value: float, spread: float) -> float:
        return value + source.uniform(-spread, spread)

    two = len(scene.objects) == 2
    lanes = tuple(near(at, 0.02) for at in (0.28, 0.72)) if two else (near(0.5, 0.1),)
    dark = _dark(source)
    phases = round(BOUNCE_S * FPS / 6)  # a bounce touches at every sixth frame of the grid
    turn = source.randrange(phases) / phases if scene.motion == "bounce" else source.random()
    return Clip(
        scene=scene,
        colours=tuple(
            _clamped([near(channel / 255, 0.03) for channel in COLOURS[each.colour]])
            for each in scene.objects
        ),
        radii=tuple(SIZES[each.size] * near(1.0, 0.05) for each in scene.objects),
        lanes=lanes,
        extent=near(0.28, 0.02),
        phase=turn,
        middle=(near(0.5, 0.03), near(0.5, 0.03)),
        ground=(dark, _dark(source) if scene.ground == "gradient" else dark),
        ground_angle=source.uniform(0.0, 6.283),
        noise_seed=source.randrange(2**31),
    )


def draw_clips(seed: int, count: int, *, objects: int | None = None) -> list[Clip]:
    """`count` clips of training scenes; the same ones for the same seed."""
    source = random.Random(seed)
    return [place(draw_training_scene(source, objects=objects), source) for _ in range(count)]


def _dark(source: random.Random) -> tuple[float, float, float]:
    grey = source.uniform(0.08, 0.26)
    return _clamped([grey + source.uniform(-0.06, 0.06) for _ in range(3)])


def _clamped(channels: list[float]) -> tuple[float, float, float]:
    red, green, blue = (min(1.0, max(0.0, channel)) for channel in channels)
    return red, green, blue
