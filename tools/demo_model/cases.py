"""The held-out requests of the score, the same ones every time."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tools.demo_model import prompts
from tools.demo_model.drawing import Clip, draw_held_out_scene, place
from tools.demo_model.prompts import say, say_with_reference

_SEED = 20_000


@dataclass(frozen=True)
class Case:
    """One request and what it should give."""

    group: str
    """The row of the table it counts in."""
    mode: str
    """One of `presentation.MODES`."""
    prompt: str
    clip: Clip
    """A rendering of the prompt's scene: the source of keyframes."""
    shown: Clip
    """Another clip of the same object, elsewhere and on another ground: the source of references.

    Its motion and its sound are another draw's, but the sound of mode "sound" is the scene's.
    """
    seed: int


GROUPS = {
    "t2va, one object, English": ("t2va", 1, "en"),
    "t2va, one object, Chinese": ("t2va", 1, "zh"),
    "t2va, two objects": ("t2va", 2, None),
    "fl2va, first": ("first", 1, None),
    "fl2va, last": ("last", 1, None),
    "fl2va, both": ("both", 1, None),
    "ref2va, image": ("image", 1, None),
    "ref2va, video": ("video", 1, None),
    "ref2va, image and sound": ("sound", 1, None),
}


def cases(group: str, count: int) -> Iterator[Case]:
    """The first `count` cases of a group; more of them begin with the same ones."""
    mode, objects, language = GROUPS[group]
    source = random.Random(f"{_SEED} {group}")
    for number in range(count):
        scene = draw_held_out_scene(source, objects=objects)
        other = draw_held_out_scene(source, objects=1)
        shown = type(scene)(
            objects=scene.objects[:1],
            motion=other.motion,
            sound=scene.sound if mode == "sound" else other.sound,
            ground=other.ground,
        )
        if mode in prompts.REFERENCES:
            prompt = say_with_reference(scene, mode, source, language)
        else:
            prompt = say(scene, source, language)
        yield Case(
            group=group,
            mode=mode,
            prompt=prompt,
            clip=place(scene, source),
            shown=place(shown, source),
            seed=_SEED + number,
        )
