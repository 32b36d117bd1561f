"""The English words and sentences of the demo world."""

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tools.demo_model.attributes import Scene

Words = Mapping[str, Sequence[str]]


class English:
    """How to say each attribute; a class and not a module so that another language can be passed.

    In every list the first entry is the plainest.
    """

    COLOURS: ClassVar[Words] = {
        "red": ("red", "crimson", "scarlet"),
        "orange": ("orange", "tangerine"),
        "yellow": ("yellow", "lemon yellow"),
        "green": ("green", "grass green"),
        "cyan": ("cyan", "turquoise", "sky blue"),
        "blue": ("blue", "deep blue"),
        "purple": ("purple", "violet"),
        "white": ("white", "snow white"),
    }
    SHAPES: ClassVar[Words] = {
        "circle": ("circle", "ball", "disc"),
        "square": ("square", "box"),
        "triangle": ("triangle",),
        "star": ("star", "five-pointed star"),
    }
    SIZES: ClassVar[Words] = {
        "small": ("small", "little", "tiny"),
        "medium": ("", "medium", "medium-sized"),
        "large": ("large", "big", "huge"),
    }
    MOTIONS: ClassVar[Words] = {
        "right": (
            "moves from left to right", "slides to the right", "glides rightward",
            "travels from the left side to the right side", "drifts right",
        ),
        "left": (
            "moves from right to left", "slides to the left", "glides leftward",
            "travels from the right side to the left side", "drifts left",
        ),
        "up": ("moves up", "rises", "floats upward", "climbs from the bottom to the top"),
        "down": ("moves down", "sinks", "falls slowly downward", "descends from top to bottom"),
        "bounce": ("bounces", "keeps bouncing", "jumps up and down", "hops on the spot"),
        "orbit": ("circles around the centre", "orbits the middle", "goes round and round"),
        "grow": ("grows", "gets bigger and bigger", "expands"),
        "shrink": ("shrinks", "gets smaller and smaller", "contracts"),
        "still": ("stays still", "does not move", "rests in place", "stands still"),
    }  # fmt: skip
    SOUNDS: ClassVar[Words] = {
        "low": ("a low tone", "a deep hum", "a low-pitched sound"),
        "middle": ("a middle tone", "a medium-pitched tone", "a tone of middle pitch"),
        "high": ("a high tone", "a high-pitched whistle", "a shrill tone"),
        "beeps": ("beeps", "a beeping sound", "short repeated beeps"),
        "wash": ("a wash of noise", "the sound of waves", "wind and hiss", "rushing noise"),
        "silence": ("silence", "no sound", "nothing to be heard"),
    }
    BEATS: ClassVar[Sequence[str]] = ("a beep at every bounce", "beeps in time with the bounces")
    GROUNDS: ClassVar[Words] = {
        "plain": ("on a plain ground", "on a dark plain background", "before a plain backdrop"),
        "gradient": ("on a gradient", "before a shaded backdrop", "on a gradient background"),
    }
    REFERENCES: ClassVar[Words] = {
        "image": ("the {}object in the picture", "the {}shape of the picture"),
        "video": ("the {}object of the video", "the {}shape from the video"),
    }
    RECORDED: ClassVar[Sequence[str]] = ("the sound of the recording", "the recorded sound")
    SENTENCES: ClassVar[Sequence[str]] = (
        "{what} {moves} {ground}, {sound}",
        "{what} {moves}, {sound}",
        "{what} that {moves} {ground}, with {sound}",
        "{ground}, {what} {moves}, with {sound}",
        "a clip of {what}: it {moves}, and there is {sound}",
        "{sound}, while {what} {moves}",
    )
    AND: ClassVar[Sequence[str]] = ("{} and {}", "{} with {}", "{}, and also {}")

    @classmethod
    def all_objects(cls, scene: Scene, source: random.Random) -> str:
        """The objects of a scene, in order: "a big red ball and a blue box"."""
        said = [
            cls.one_object(each.size, each.colour, each.shape, source) for each in scene.objects
        ]
        return said[0] if len(said) == 1 else source.choice(cls.AND).format(*said)

    @classmethod
    def one_object(cls, size: str, colour: str, shape: str, source: random.Random) -> str:
        """One object with its article."""
        lists = (cls.SIZES[size], cls.COLOURS[colour], cls.SHAPES[shape])
        said = " ".join(word for each in lists if (word := source.choice(each)))
        return ("an " if said[0] in "aeiou" else "a ") + said

    @classmethod
    def referred(cls, size: str, reference: str, source: random.Random) -> str:
        """The object that a reference shows."""
        word = source.choice(cls.SIZES[size])
        shown = cls.REFERENCES["video" if reference == "video" else "image"]
        return source.choice(shown).format(word + " " if word else "")

    @classmethod
    def sentence(cls, what: str, scene: Scene, source: random.Random, *, sound: bool) -> str:
        """A whole prompt; without `sound` it points to a recording instead."""
        bounced = scene.motion == "bounce" and scene.sound == "beeps"
        sounds = (cls.BEATS if bounced else cls.SOUNDS[scene.sound]) if sound else cls.RECORDED
        return source.choice(cls.SENTENCES).format(
            what=what,
            moves=source.choice(cls.MOTIONS[scene.motion]),
            sound=source.choice(sounds),
            ground=source.choice(cls.GROUNDS[scene.ground]),
        )
