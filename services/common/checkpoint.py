"""Where a checkpoint's facts and components come from, the same code for a folder and a hub id.

`describe` reads JSON and safetensors headers alone, so that a process without torch can publish
what a checkpoint can do. `load` brings the named components of one stage into memory and nothing
else; the big libraries are imported when it is called.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENCODER_COMPONENTS = ("text_encoder", "tokenizer", "processor")
SAMPLER_COMPONENTS = ("transformer", "scheduler", "audio_scheduler")
DECODER_COMPONENTS = ("vae", "audio_vae")

_INDEX = "modular_model_index.json"
_DEFAULTS_FILE = "reelmesh.json"
_HALF_ON_CUDA = ("text_encoder", "transformer")  # the VAEs stay fp32: half loses their level
_SAMPLES = 16
_SAMPLE_BYTES = 4096


class CheckpointError(ValueError):
    """The checkpoint cannot be used as it is; the message says what to do about it."""


@dataclass(frozen=True)
class ModelSettings:
    """What a stage needs to know to load its part of the model."""

    checkpoint: str
    """A folder in diffusers' modular layout, or a hub id such as "MiniMaxAI/MiniMax-H3"."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:1", or "auto": cuda where there is one."""
    dtype: str = "auto"
    """"fp32", "bf16" or "auto" (fp32 on a CPU, bf16 on CUDA) for transformer and text encoder."""
    threads: int = 0
    """torch's CPU threads, which results depend on bit for bit; 0 leaves torch's default."""
    revision: str | None = None
    """A hub commit, tag or branch; unused with a folder."""


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


# What _DEFAULTS_FILE beside the index may set, and the released checkpoint's values: 768x1344 and
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
        root = _fetch_configs(checkpoint, revision)
        digest = hashlib.sha256(f"{checkpoint}@{root.name}".encode()).hexdigest()
    else:
        root = folder
        _read_json(root / _INDEX)
        digest = _digest(root)
    transformer = _read_json(root / "transformer" / "config.json")
    vae = _read_json(root / "vae" / "config.json")
    audio_vae = _read_json(root / "audio_vae" / "config.json")
    text = _read_json(root / "text_encoder" / "config.json")["text_config"]
    tokenizer = _read_json(root / "tokenizer" / "tokenizer_config.json")
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
        **_instance_defaults(root),
    )


def local_folder(checkpoint: str) -> Path | None:
    """The folder that `checkpoint` names, or None if it is a hub id.

    "owner/name" is a hub id unless a folder `owner` exists here. A folder that does not exist is a
    `CheckpointError`.
    """
    path = Path(checkpoint).expanduser()
    if path.is_dir():
        return path
    hub_like = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..")
    if hub_like and not Path(path.parts[0]).is_dir() and path.parts[0] != "checkpoints":
        return None
    raise CheckpointError(
        f"there is no checkpoint folder at {checkpoint}: build the small one with "
        f"`python -m tools.tiny_checkpoint --out {checkpoint}`, or name a downloaded one"
    )


def load(settings: ModelSettings, names: Iterable[str]) -> dict[str, Any]:
    """Load the named components onto the settings' device, models in eval mode.

    Raises `CheckpointError` when one is missing or does not load.
    """
    # Two stages on one CPU: OpenMP's threads spin at every barrier while the other stage needs
    # their cores, which made both 10 to 20 times slower on two cores. OpenMP reads this once, when
    # torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from diffusers.modular_pipelines.modular_pipeline import ModularPipeline
    from transformers.utils.logging import disable_progress_bar

    # A service's log is no terminal. (transformers has no types here.)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = local_folder(settings.checkpoint)
    where: dict[str, Any] = {"revision": settings.revision}
    if folder is not None:
        _read_json(folder / _INDEX)
        for name in names:
            _require_component(folder, name)
        where = {"pretrained_model_name_or_path": str(folder)}
    device = pick_device(settings)
    use_threads(settings)
    try:
        pipeline = ModularPipeline.from_pretrained(
            settings.checkpoint, revision=where.get("revision")
        )
        components = {}
        for name in names:
            half = name in _HALF_ON_CUDA and _wants_half(settings, device.type)
            dtype = torch.bfloat16 if half else torch.float32
            component = pipeline.get_component_spec(name).load(dtype=dtype, **where)
            if isinstance(component, torch.nn.Module):
                component = component.to(device).eval()
            components[name] = component
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"the checkpoint {settings.checkpoint} does not load: {_last_line(error)}"
        ) from error
    return components


def pick_device(settings: ModelSettings) -> Any:
    """The `torch.device` that the settings name."""
    import torch

    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def use_threads(settings: ModelSettings) -> None:
    """Set torch's threads for the calling thread: every thread that works has to say it."""
    import torch

    if settings.threads > 0:
        torch.set_num_threads(settings.threads)


def _wants_half(settings: ModelSettings, device_type: str) -> bool:
    if settings.dtype not in ("auto", "fp32", "bf16"):
        raise CheckpointError(f"dtype is auto, fp32 or bf16, not {settings.dtype}")
    return settings.dtype == "bf16" or (settings.dtype == "auto" and device_type == "cuda")


def _require_component(folder: Path, name: str) -> None:
    part = folder / name
    if not any(part.glob("*.json")):
        raise CheckpointError(
            f"{part} is missing or empty: the checkpoint is incomplete, get it again"
        )
    shards = [
        shard
        for index in part.glob("*.safetensors.index.json")
        for shard in set(_read_json(index)["weight_map"].values())
    ]
    missing = [shard for shard in sorted(shards) if not (part / shard).is_file()]
    if missing:
        raise CheckpointError(f"{part} lacks {', '.join(missing)}: download the checkpoint again")


def _instance_defaults(root: Path) -> dict[str, int]:
    path = root / _DEFAULTS_FILE
    given = _read_json(path) if path.is_file() else {}
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        raise CheckpointError(f"{path} has unknown keys {unknown}; known are {sorted(_DEFAULTS)}")
    return {**_DEFAULTS, **given}


def _fetch_configs(checkpoint: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(checkpoint, revision=revision, allow_patterns=["*.json"]))
    except (ValueError, OSError) as error:  # every hub and network error is one of the two
        raise CheckpointError(
            f"{checkpoint} is no folder here, and as a hub id it cannot be read "
            f"({_last_line(error)}): check the spelling, the network and your access to it"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: the checkpoint is incomplete, get it again"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


def _digest(root: Path) -> str:
    """SHA-256 over the config files and, of each weight file, size, header and samples.

    `reelmesh.json` is left out: it changes what is offered, not what is computed. The samples (16
    blocks of 4 KiB, evenly spaced) tell two trainings of one architecture apart without reading
    120 GB.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".json" and name != _DEFAULTS_FILE:
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


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
