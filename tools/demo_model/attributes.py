"""What a clip of the demo world can show and sound: the closed lists everything else reads."""

from dataclasses import dataclass

FPS = 24
FRAMES = 124
SIDE = 128  # pixels, height and width
SAMPLE_RATE = 32_000
SAMPLES = 165_600  # 207 audio latents of 800 samples: 124 frames, rounded up to a latent

# Name and RGB in 0..255. Every one has a channel far above the grounds, so a picture splits into
# object and ground by brightness alone.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 35, 40),
    "orange": (245, 130, 20),
    "yellow": (240, 225, 50),
    "green": (40, 190, 70),
    "cyan": (50, 215, 230),
    "blue": (45, 75, 235),
    "purple": (165, 50, 220),
    "white": (240, 240, 240),
}
SHAPES = ("circle", "square", "triangle", "star")
SIZES: dict[str, float] = {"small": 11.0, "medium": 15.0, "large": 20.0}  # pixels, circle radius
GROUNDS = ("plain", "gradient")
MOTIONS = ("right", "left", "up", "down", "bounce", "orbit", "grow", "shrink", "still")
SOUNDS = ("low", "middle", "high", "beeps", "wash", "silence")

# Hz. Multiples of 40 with phase 0, so that a steady tone is the same in every audio latent.
TONES_HZ = {"low": 160.0, "middle": 480.0, "high": 1600.0}
BEEP_HZ = 880.0
BEEPS_PER_S = 4.0
BEEP_S = 0.1
BOUNCE_S = 0.75  # seconds from one touch of the floor to the next
PEAK = 0.5  # of full scale, of a sound in the middle of the picture, both channels together


@dataclass(frozen=True)
class Object:
    """One shape of a clip, by the names above."""

    colour: str
    shape: str
    size: str


@dataclass(frozen=True)
class Scene:
    """What a prompt says: one or two objects, one motion of all, one sound that follows the first.

    Two objects lie above each other when they move sideways and beside each other otherwise, the
    first named one on top or on the left.
    """

    objects: tuple[Object, ...]
    motion: str
    sound: str
    ground: str


def is_held_out(colour: str, shape: str, motion: str) -> bool:
    """Whether no training, the VAEs' included, ever draws this combination: one in nine.

    Every colour, shape and motion lies on both sides, so that only combinations are new.
    """
    colours, shapes = tuple(COLOURS), SHAPES
    number = colours.index(colour) + 2 * shapes.index(shape) + MOTIONS.index(motion)
    return number % len(MOTIONS) == 0


def has_held_out(scene: Scene) -> bool:
    """Whether any object of a scene makes a combination that training never draws."""
    return any(is_held_out(each.colour, each.shape, scene.motion) for each in scene.objects)
