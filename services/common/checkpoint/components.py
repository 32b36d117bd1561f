"""Loads the components of one stage, the same code for a folder and a hub id.

Nothing else of the checkpoint comes into memory; the big libraries are imported when `load` is
called.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.common.checkpoint.files import (
    INDEX,
    CheckpointError,
    last_line,
    local_folder,
    read_json,
    require_component,
)

ENCODER_COMPONENTS = ("text_encoder", "tokenizer", "processor")
SAMPLER_COMPONENTS = ("transformer", "scheduler", "audio_scheduler")
DECODER_COMPONENTS = ("vae", "audio_vae")

_HALF_ON_CUDA = ("text_encoder", "transformer")  # the VAEs stay fp32: half loses their level


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
        read_json(folder / INDEX)
        for name in names:
            require_component(folder, name)
        where = {"pretrained_model_name_or_path": str(folder)}
    device = pick_device(settings)
    use_threads(settings)
    try:
        pipeline = ModularPipeline.from_pretrained(
            settings.checkpoint, revision=where.get("revision")
        )
        components = {}
        for name in names:
            dtype = pick_dtype(settings, name, device)
            component = pipeline.get_component_spec(name).load(dtype=dtype, **where)
            if isinstance(component, torch.nn.Module):
                component = component.to(device).eval()
            components[name] = component
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"the checkpoint {settings.checkpoint} does not load: {last_line(error)}"
        ) from error
    return components


def pick_device(settings: ModelSettings) -> Any:
    """The `torch.device` that the settings name."""
    import torch

    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise CheckpointError(
            f"device {settings.device!r}: use cpu, cuda, cuda:1 or auto"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CheckpointError(f"device {settings.device}: torch finds no CUDA device here")
    return device


def pick_dtype(settings: ModelSettings, name: str, device: Any) -> Any:
    """The `torch.dtype` of a component on a device."""
    import torch

    half = name in _HALF_ON_CUDA and _wants_half(settings, device.type)
    return torch.bfloat16 if half else torch.float32


def use_threads(settings: ModelSettings) -> None:
    """Set torch's threads for the calling thread: every thread that works has to say it."""
    import torch

    if settings.threads > 0:
        torch.set_num_threads(settings.threads)


def _wants_half(settings: ModelSettings, device_type: str) -> bool:
    if settings.dtype not in ("auto", "fp32", "bf16"):
        raise CheckpointError(f"dtype is auto, fp32 or bf16, not {settings.dtype}")
    return settings.dtype == "bf16" or (settings.dtype == "auto" and device_type == "cuda")
