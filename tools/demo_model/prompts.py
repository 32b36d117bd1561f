"""Says a scene in words, in many ways, in English and in Chinese."""

import random

from tools.demo_model import chinese, english
from tools.demo_model.attributes import Scene

LANGUAGES = ("en", "zh")
_CHINESE = 0.35  # of the prompts of a training

REFERENCES = ("image", "video", "sound")
"""What shows the look of a prompt's object; with "sound" an image does, and a recording sounds."""


def say(scene: Scene, source: random.Random, language: str | None = None) -> str:
    """One of the many prompts that describe a scene wholly; its language is drawn if not given."""
    words = _words(source, language)
    return words.sentence(words.all_objects(scene, source), scene, source, sound=True)


def say_with_reference(
    scene: Scene, reference: str, source: random.Random, language: str | None = None
) -> str:
    """A prompt that names no colour or shape: a reference of the kind `reference` shows them.

    With "sound" an image shows the object and a recording says what is heard.
    """
    words = _words(source, language)
    named = words.referred(scene.objects[0].size, reference, source)
    return words.sentence(named, scene, source, sound=reference != "sound")


def _words(source: random.Random, language: str | None) -> type[english.English]:
    if language is None:
        language = "zh" if source.random() < _CHINESE else "en"
    return chinese.Chinese if language == "zh" else english.English
