"""The tokenizer of the demo checkpoint: byte-level BPE learnt from its own prompts."""

import random
from collections.abc import Iterator
from typing import Any

from tools.demo_model.chinese import Chinese
from tools.demo_model.drawing import draw_scene
from tools.demo_model.prompts import REFERENCES, say, say_with_reference
from tools.tiny_models import untyped

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_PIECES = 1250  # the 256 bytes, and every word of the prompts
_CORPUS = 4000
_CHINESE_REPEATS = 40
_LABELS = "<Picture 1>: <Picture 2>: <Audio 1>: <Video 1>: <0.2 seconds> <1.2 seconds>"


def build() -> Any:
    """A `Qwen2Tokenizer`; other text than the prompts' falls back to their pieces and to bytes."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    transformers = untyped("transformers")
    alphabet = sorted(ByteLevel.alphabet())
    blank = transformers.Qwen2Tokenizer(
        vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]
    )
    learner = Tokenizer(BPE())
    # The same cutting of text as the final tokenizer's, or its merges would not be met again.
    learner.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    learner.train_from_iterator(
        _corpus(), BpeTrainer(vocab_size=_PIECES, initial_alphabet=alphabet, show_progress=False)
    )
    learnt = untyped("json").loads(learner.to_str())["model"]
    return transformers.Qwen2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(pair) for pair in learnt["merges"]],
        additional_special_tokens=list(_SPECIAL[1:]),
        model_max_length=1024,
    )


def _corpus() -> Iterator[str]:
    source = random.Random(0)
    for number in range(_CORPUS):
        scene = draw_scene(source)
        if number % 4:
            yield say(scene, source, "en")
        else:
            yield say_with_reference(scene, source.choice(REFERENCES), source, "en")
        yield _LABELS
    # Chinese writes no spaces: word by word, or pieces would grow across words.
    yield from _chinese_words() * _CHINESE_REPEATS


def _chinese_words() -> list[str]:
    words = [
        "一个",
        "的",
        "在",
        "上",
        "前",
        "和",
        "与",
        "还有",
        "伴着",
        "配着",
        "一段视频",
        "里的",
        "中的",
    ]
    for value in vars(Chinese).values():
        for listed in value.values() if isinstance(value, dict) else [value]:
            if isinstance(listed, tuple):
                words += [word for word in listed if word and "{" not in word]
    return words
