"""Trains the text encoder to know what a prompt asks for, in both languages."""

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.demo_model import tokens
from tools.demo_model.attributes import (
    COLOURS,
    GROUNDS,
    MOTIONS,
    SHAPES,
    SIZES,
    SOUNDS,
    Scene,
)
from tools.demo_model.drawing import draw_scene, draw_training_scene
from tools.demo_model.embedding import blind, complete
from tools.demo_model.loop import Training
from tools.demo_model.models import TEXT_WIDTH, TRAINED_TEXT_LAYERS, text_encoder
from tools.demo_model.pace import Pace, Recipe
from tools.demo_model.presentation import MODES, present_all
from tools.demo_model.prompts import say, say_with_reference
from tools.demo_model.shipping import ship

RECIPE = Recipe(learning_rate=2e-3, half=False)
_BATCH = 256
_NONE = ("",)
_QUESTIONS: tuple[tuple[str, ...], ...] = (
    (*COLOURS, *_NONE), (*SHAPES, *_NONE), tuple(SIZES),
    (*COLOURS, *_NONE), (*SHAPES, *_NONE), (*SIZES, *_NONE),
    MOTIONS, (*SOUNDS, *_NONE), (*GROUNDS, *_NONE),
)  # fmt: skip
REFERENCE_MODES = ("image", "video", "sound")


class Questioned(nn.Module):
    """The trained layers of the encoder, with one classifier for each attribute."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.trunk = text_encoder(tokenizer, layers=TRAINED_TEXT_LAYERS + 1)
        blind(self.trunk)
        self.heads = nn.ModuleList(nn.Linear(2 * TEXT_WIDTH, len(each)) for each in _QUESTIONS)

    def forward(self, ids: Tensor, lengths: Tensor) -> list[Tensor]:
        """Logits for each question; `ids` (B, L) padded on the right, `lengths` (B,)."""
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        language = self.trunk.model.language_model
        config = self.trunk.config
        seen = (ids == config.image_token_id) | (ids == config.video_token_id)
        embeds = language.embed_tokens(ids) * ~seen[..., None]
        outputs = language(
            inputs_embeds=embeds,
            attention_mask=mask.long(),
            use_cache=False,
            output_hidden_states=True,
        )
        hidden = outputs.hidden_states[TRAINED_TEXT_LAYERS]
        last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]
        mean = (hidden * mask[..., None]).sum(1) / lengths[:, None]
        both = torch.cat((last, mean), dim=-1)
        return [head(both) for head in self.heads]


def draw_prompt(source: random.Random, mode: str, *, training: bool = True) -> tuple[str, Scene]:
    """A prompt of a mode and its scene."""
    draw = draw_training_scene if training else draw_scene
    if mode in REFERENCE_MODES:
        scene = draw(source, objects=1)
        return say_with_reference(scene, mode, source), scene
    scene = draw(source)
    return say(scene, source), scene


def answers(scene: Scene, mode: str, prompt: str) -> list[int]:
    """The right class for each question, "" where the prompt does not say."""
    first, second = scene.objects[0], scene.objects[1] if len(scene.objects) == 2 else None
    shown = mode in REFERENCE_MODES
    said = (
        "" if shown else first.colour, "" if shown else first.shape, first.size,
        second.colour if second else "", second.shape if second else "",
        second.size if second else "",
        scene.motion, "" if mode == "sound" else scene.sound,
        scene.ground if _names_ground(prompt) else "",
    )  # fmt: skip
    return [options.index(each) for options, each in zip(_QUESTIONS, said, strict=True)]


def train(folder: Path, pace: Pace, device: torch.device) -> None:
    """The text stage: tokenizer, training, the full encoder in `folder`/text."""
    tokenizer = tokens.build()
    torch.manual_seed(1)
    model = Questioned(tokenizer).to(device)
    for weight in model.trunk.model.visual.parameters():
        weight.requires_grad_(False)
    training = Training("text", model, RECIPE, folder)
    training.resume()

    def loss_of(step: int, *, training_scenes: bool = True) -> dict[str, Tensor]:
        source = random.Random(step + 1_000_000)
        mode = MODES[step % len(MODES)]
        drawn = [draw_prompt(source, mode, training=training_scenes) for _ in range(_BATCH)]
        rows, _ = present_all(tokenizer, [prompt for prompt, _ in drawn], mode)
        right = torch.tensor([answers(scene, mode, prompt) for prompt, scene in drawn])
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for row, padded in zip(rows, ids, strict=True):
            padded[: len(row)] = torch.tensor(row)
        logits = model(ids.to(device), lengths.to(device))
        right = right.to(device)
        loss = sum(
            (nn.functional.cross_entropy(each, right[:, at]) for at, each in enumerate(logits)),
            start=torch.zeros((), device=device),
        )
        exact = torch.stack([each.argmax(-1) == right[:, at] for at, each in enumerate(logits)])
        return {"loss": loss, "all_right": exact.all(0).float().mean()}

    training.run(loss_of, pace)
    training.use_average()
    with torch.no_grad():
        right = [float(loss_of(-1 - at, training_scenes=False)["all_right"]) for at in range(7)]
    training.log(all_right_of_any=[round(each, 4) for each in right])
    full = text_encoder(tokenizer).to(device)
    complete(model.trunk, full)
    ship(full, folder / "text")
    tokenizer.save_pretrained(folder / "tokenizer")


def _names_ground(prompt: str) -> bool:
    return any(word in prompt for word in ("ground", "backdrop", "gradient", "背景"))
