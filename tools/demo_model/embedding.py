"""What the text encoder makes of presentations, and how its trained layers become the whole."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tools.demo_model.models import PICTURE_TOKENS, TRAINED_TEXT_LAYERS


def embed(encoder: Any, rows: Sequence[Sequence[int]], layer: int) -> Tensor:
    """(N, L, width): `hidden_states[layer]` of N presentations of one mode and one length.

    Equal to the class's with any pictures, which a blind encoder gives zeros for. The class lays
    out one row, whose positions all of them share: it does so picture by picture, in Python.
    """
    ids = torch.tensor(rows, device=encoder.device)
    config = encoder.config
    pads = (ids == config.image_token_id) | (ids == config.video_token_id)
    language = encoder.model.language_model
    outputs = language(
        inputs_embeds=language.embed_tokens(ids) * ~pads[..., None],
        attention_mask=torch.ones_like(ids),
        position_ids=_positions(encoder, ids[:1]).expand(-1, len(ids), -1),
        use_cache=False,
        output_hidden_states=True,
    )
    hidden: Tensor = outputs.hidden_states[layer]
    return hidden


def embed_one(encoder: Any, ids: Tensor, layer: int) -> Tensor:
    """The class's own `hidden_states[layer]` of one presentation (1, L), with black pictures."""
    config = encoder.config
    images, videos = ids == config.image_token_id, ids == config.video_token_id
    vision: dict[str, Tensor] = {}
    count = int(images.sum()) // PICTURE_TOKENS
    if count:
        vision["image_grid_thw"] = torch.tensor([[1, 8, 8]] * count, device=ids.device)
        vision["pixel_values"] = torch.zeros(count * 64, 1536, device=ids.device)
    blocks = int(videos.sum()) // PICTURE_TOKENS
    if blocks:
        vision["video_grid_thw"] = torch.tensor([[blocks, 8, 8]], device=ids.device)
        vision["pixel_values_videos"] = torch.zeros(blocks * 64, 1536, device=ids.device)
    outputs = encoder.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=images.long() + 2 * videos.long(),
        use_cache=False,
        output_hidden_states=True,
        **vision,
    )
    hidden: Tensor = outputs.hidden_states[layer]
    return hidden


def _positions(encoder: Any, ids: Tensor) -> Tensor:
    """The rotary positions (axes, 1, L) that the class gives one presentation (1, L)."""
    caught: list[Tensor] = []

    def catch(_: Any, __: Any, named: dict[str, Any]) -> None:
        if named.get("position_ids") is not None:
            caught.append(named["position_ids"])

    hook = encoder.model.language_model.register_forward_pre_hook(catch, with_kwargs=True)
    embed_one(encoder, ids, 0)
    hook.remove()
    plain = torch.arange(ids.shape[1], device=ids.device).view(1, 1, -1)
    return caught[0] if caught else plain.expand(3, -1, -1)


def complete(trunk: Any, full: Any) -> None:
    """Put a trained trunk into the full stack, whose further layers become exact identities."""
    layers = full.model.language_model.layers
    state = {
        name: value
        for name, value in trunk.state_dict().items()
        if f"layers.{TRAINED_TEXT_LAYERS}." not in name
    }
    full.load_state_dict(state, strict=False)
    with torch.no_grad():
        for layer in layers[TRAINED_TEXT_LAYERS:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        blind(full)


def blind(encoder: Any) -> None:
    """Zero what vision adds to the text rows: pictures act through their latents alone."""
    visual = encoder.model.visual
    with torch.no_grad():
        for merger in (visual.merger, *visual.deepstack_merger_list):
            merger.linear_fc2.weight.zero_()
            merger.linear_fc2.bias.zero_()
