"""Reads a conditioning file for one mode, with distrust.

Which tensors there must be follows from the mode alone (services/common/conditioning.py): a
missing or a surplus one is refused by name, because a keyframe that is silently ignored would be a
wrong video and no error.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from services.common import conditioning as names
from services.common.conditioning import listed
from services.common.work import EngineError, NonFinite


@dataclass(frozen=True)
class Reference:
    """What the packed sequence needs to know of one reference: no pixels."""

    kind: str
    has_audio: bool


@dataclass(frozen=True)
class Conditioning:
    """The tensors of one file, by mode; the lists are empty where the mode has none."""

    mode: str
    prompt_embeds: torch.Tensor
    text_token_tags: torch.Tensor
    keyframe_anchors: tuple[str, ...] = ()
    references: list[Reference] = field(default_factory=list)
    condition_latents: list[torch.Tensor] = field(default_factory=list)
    audio_condition_latents: list[torch.Tensor] = field(default_factory=list)


def read_conditioning(
    path: Path, mode: str, canvas: tuple[int, int], transformer_config: Any
) -> Conditioning:
    """The conditioning of a mode; `canvas` is the latents' (height, width).

    Raises BAD_CONDITIONING naming the tensor, or `NonFinite`.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise EngineError("BAD_CONDITIONING", f"not a safetensors file: {error}") from error
    reader = _Reader(mode, tensors, transformer_config)
    embeds, tags = reader.text()
    anchors: tuple[str, ...] = ()
    references: list[Reference] = []
    visual: list[torch.Tensor] = []
    sounds: list[torch.Tensor] = []
    if mode == "fl2va":
        anchors = reader.anchors()
        visual = [reader.visual(place, 1, canvas) for place in range(len(anchors))]
    elif mode == "ref2va":
        references = reader.references()
        for reference in references:
            if reference.kind != "audio":
                frames = 1 if reference.kind == "image" else None
                visual.append(reader.visual(len(visual), frames, None))
            if reference.has_audio:
                sounds.append(reader.sound(len(sounds)))
    reader.refuse_rest()
    return Conditioning(mode, embeds, tags, anchors, references, visual, sounds)


class _Reader:
    """Takes the tensors of a file one by one, each checked; what is left over is refused."""

    def __init__(self, mode: str, tensors: dict[str, torch.Tensor], config: Any) -> None:
        self._mode = mode
        self._left = tensors
        self._config = config

    def text(self) -> tuple[torch.Tensor, torch.Tensor]:
        embeds, width = self._take(names.PROMPT_EMBEDS), self._config.text_dim
        fits = embeds.ndim == 3 and embeds.shape[0] == 1 and embeds.shape[2] == width
        if not fits or not embeds.is_floating_point():
            raise _bad(names.PROMPT_EMBEDS, f"is (1, tokens, {width}) in floats", embeds)
        if not bool(torch.isfinite(embeds).all()):
            raise NonFinite("the prompt's embeddings")
        tags = self._codes(names.TEXT_TOKEN_TAGS, 3)
        if len(tags) != embeds.shape[1]:
            raise _bad(names.TEXT_TOKEN_TAGS, f"has {embeds.shape[1]} entries", tags)
        return embeds, tags

    def anchors(self) -> tuple[str, ...]:
        codes = self._codes(names.KEYFRAME_ANCHORS_TENSOR, len(names.KEYFRAME_ANCHORS)).tolist()
        if codes != sorted(set(codes)):
            raise EngineError(
                "BAD_CONDITIONING",
                f"{names.KEYFRAME_ANCHORS_TENSOR} names each end once, the first one first",
            )
        return tuple(names.KEYFRAME_ANCHORS[code] for code in codes)

    def references(self) -> list[Reference]:
        kinds = self._codes(names.REFERENCE_KINDS_TENSOR, len(names.REFERENCE_KINDS))
        sounding = self._codes(names.REFERENCE_HAS_AUDIO_TENSOR, 2)
        if len(sounding) != len(kinds):
            raise _bad(names.REFERENCE_HAS_AUDIO_TENSOR, f"has {len(kinds)} entries", sounding)
        found = [
            Reference(names.REFERENCE_KINDS[kind], bool(has_audio))
            for kind, has_audio in zip(kinds.tolist(), sounding.tolist(), strict=True)
        ]
        counts = {kind: sum(one.kind == kind for one in found) for kind in names.REFERENCE_KINDS}
        over = [kind for kind, most in names.MOST_REFERENCES.items() if counts[kind] > most]
        if over or len(found) > names.MOST_REFERENCES_IN_ALL or counts["audio"] == len(found):
            raise EngineError(
                "BAD_CONDITIONING",
                f"{names.REFERENCE_KINDS_TENSOR} are at most {names.MOST_REFERENCES} and "
                f"{names.MOST_REFERENCES_IN_ALL} in all, with an image or a video, not {counts}",
            )
        for one in found:
            if one.kind != "video" and one.has_audio != (one.kind == "audio"):
                raise EngineError(
                    "BAD_CONDITIONING",
                    f"{names.REFERENCE_HAS_AUDIO_TENSOR} says {one.has_audio} of an {one.kind}",
                )
        return found

    def visual(
        self, place: int, frames: int | None, canvas: tuple[int, int] | None
    ) -> torch.Tensor:
        name = listed(names.CONDITION_LATENTS, place)
        latents = self._floats(name)
        channels, patch = self._config.in_channels, self._config.patch_size
        wanted = (1, channels, frames or "frames", *(canvas or ("height", "width")))
        fits = latents.ndim == 5 and all(
            size == want
            for size, want in zip(latents.shape, wanted, strict=True)
            if not isinstance(want, str)
        )
        if not fits or any(
            size == 0 or size % edge for size, edge in zip(latents.shape[2:], patch, strict=True)
        ):
            shape = ", ".join(map(str, wanted))
            raise _bad(name, f"is ({shape}) in whole patches of {tuple(patch)}", latents)
        return latents

    def sound(self, place: int) -> torch.Tensor:
        name = listed(names.AUDIO_CONDITION_LATENTS, place)
        rows, channels = self._floats(name), self._config.audio_in_channels
        if rows.ndim != 2 or rows.shape[1] != channels or not len(rows) or len(rows) % 2:
            raise _bad(name, f"is (2 * frames, {channels})", rows)
        return rows

    def refuse_rest(self) -> None:
        if self._left:
            raise EngineError(
                "BAD_CONDITIONING", f"mode {self._mode} has no tensor {min(self._left)!r} here"
            )

    def _take(self, name: str) -> torch.Tensor:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise EngineError(
                "BAD_CONDITIONING", f"mode {self._mode} needs the tensor {name!r}: it is not there"
            )
        return tensor

    def _codes(self, name: str, count: int) -> torch.Tensor:
        codes = self._take(name)
        if codes.ndim != 1 or codes.dtype != torch.long or not len(codes):
            raise _bad(name, "is (n,) int64, one or more", codes)
        if int(codes.min()) < 0 or int(codes.max()) >= count:
            raise EngineError("BAD_CONDITIONING", f"{name} holds numbers from 0 to {count - 1}")
        return codes

    def _floats(self, name: str) -> torch.Tensor:
        tensor = self._take(name)
        if tensor.dtype != torch.float32:
            raise _bad(name, "is float32", tensor)
        if not bool(torch.isfinite(tensor).all()):
            raise NonFinite(name)
        return tensor


def _bad(name: str, rule: str, found: torch.Tensor) -> EngineError:
    return EngineError("BAD_CONDITIONING", f"{name} {rule}, not {tuple(found.shape)} {found.dtype}")
