"""What a checkpoint can do, from its JSON files and safetensors headers alone.

No torch: a process without it can publish what a checkpoint can do.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.checkpoint.files import (
    DEFAULTS_FILE,
    INDEX,
    CheckpointError,
    fetch_configs,
    local_folder,
    read_json,
)

_SAMPLES = 16
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint can do, as data for those who place and refuse work."""

    digest: str
    default_height: int
    default_width: int
    default_evaluations: int
    min_frames: int
    max_frames: int
    frame_step: int
    """Frames are frame_step * n + frame_offset: 17n + 5."""
    frame_offset: int
    fps: int
    canvas_multiple: int
    video_latent_channels: int
    audio_latent_channels: int
    sample_rate_hz: int
    text_limit_tokens: int
    text_dim: int
    attention_heads: int
    feed_forward: int
    """The inner width of the transformer's feed-forwards."""


# What DEFAULTS_FILE beside the index may set, and the released checkpoint's values: 768x1344 and
# 50 inference steps (49 evaluations) from the model card, 124 to 345 frames from diffusers'
# `min_duration` and `max_duration` of 5 and 15 s on the 17n + 5 grid.
_DEFAULTS = {
    "default_height": 768,
    "default_width": 1344,
    "default_evaluations": 49,
    "min_frames": 124,
    "max_frames": 345,
}


def describe(checkpoint: str, revision: str | None = None) -> CheckpointFacts:
    """Read a checkpoint's facts from its configs. Never imports torch.

    Raises `CheckpointError` when the checkpoint is missing or incomplete.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        root = fetch_configs(checkpoint, revision)
        digest = hashlib.sha256(f"{checkpoint}@{root.name}".encode()).hexdigest()
    else:
        root = folder
        read_json(root / INDEX)
        digest = _digest(root)
    transformer = read_json(root / "transformer" / "config.json")
    vae = read_json(root / "vae" / "config.json")
    audio_vae = read_json(root / "audio_vae" / "config.json")
    text = read_json(root / "text_encoder" / "config.json")["text_config"]
    tokenizer = read_json(root / "tokenizer" / "tokenizer_config.json")
    spatial_ratio = 1
    for factor in vae["spatial_downsample_factors"]:
        spatial_ratio *= factor
    temporal_ratio = 1
    for factor in vae["temporal_downsample_factors"]:
        temporal_ratio *= factor
    return CheckpointFacts(
        digest=digest,
        frame_step=vae["clip_length"],
        frame_offset=-(-vae["clip_length"] // temporal_ratio),
        fps=24,  # the model's only rate; no config holds it
        canvas_multiple=spatial_ratio * transformer["patch_size"][2],
        video_latent_channels=transformer["in_channels"],
        audio_latent_channels=transformer["audio_in_channels"],
        sample_rate_hz=audio_vae["sampling_rate"],
        text_limit_tokens=min(
            text["max_position_embeddings"],
            int(tokenizer.get("model_max_length", text["max_position_embeddings"])),
        ),
        text_dim=transformer["text_dim"],
        attention_heads=transformer["num_attention_heads"],
        feed_forward=transformer["ffn_dim"],
        **_instance_defaults(root),
    )


def _instance_defaults(root: Path) -> dict[str, int]:
    path = root / DEFAULTS_FILE
    given = read_json(path) if path.is_file() else {}
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        raise CheckpointError(f"{path} has unknown keys {unknown}; known are {sorted(_DEFAULTS)}")
    return {**_DEFAULTS, **given}


def _digest(root: Path) -> str:
    """SHA-256 over the config files and, of each weight file, size, header and samples.

    `reelmesh.json` is left out: it changes what is offered, not what is computed. The samples (16
    blocks of 4 KiB, evenly spaced) tell two trainings of one architecture apart without reading
    120 GB.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".json" and name != DEFAULTS_FILE:
            digest.update(f"{name}\0".encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
            _add_samples(digest, path)
    return digest.hexdigest()


def _add_samples(digest: Any, path: Path) -> None:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 0 < header_bytes <= path.stat().st_size - 8:
            raise CheckpointError(f"{path} is cut short: download the checkpoint again")
        digest.update(file.read(header_bytes))
        body_bytes = path.stat().st_size - 8 - header_bytes
        for index in range(_SAMPLES):
            file.seek(8 + header_bytes + body_bytes * index // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
