"""The batched forward and the shared layouts equal the library's, mode by mode."""

import pytest
import torch

from tools.demo_model import batched, models, tokens
from tools.demo_model.embedding import blind, complete, embed, embed_one
from tools.demo_model.layouts import layout
from tools.demo_model.presentation import MODES, present


@pytest.mark.parametrize("mode", MODES)
def test_batched_forward_equals_the_class(mode: str) -> None:
    """Items at different times give what the class gives each of them alone."""
    torch.manual_seed(0)
    model = models.transformer(num_layers=2, hidden_size=64, num_attention_heads=2, ffn_dim=64)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    where = layout(mode, (1, 1, 0, 1), torch.device("cpu"))
    video = torch.randn(2, len(where.video), 96)
    audio = torch.randn(2, len(where.audio), 32)
    text = torch.randn(2, 4, models.TEXT_WIDTH)
    times = torch.tensor([[0.2, 0.5, 0.999, 1.0], [0.7, 0.9, 0.999, 1.0]])
    with torch.no_grad():
        made = batched.forward(model, where, video, audio, text, times)
        for item in range(2):
            alone = model(
                hidden_states=video[item : item + 1],
                audio_hidden_states=audio[item : item + 1],
                encoder_hidden_states=text[item : item + 1],
                timestep=times[item],
                timestep_indices=where.times,
                token_tags=where.tags,
                position_ids=where.positions,
                video_indices=where.video,
                audio_indices=where.audio,
                text_indices=where.text,
                return_dict=False,
            )
            for ours, theirs in zip(made, alone, strict=True):
                assert (ours[item] - theirs[0]).abs().max() < 1e-5 * theirs.abs().max()


def test_text_of_a_batch_equals_the_class() -> None:
    """Presentations embedded together equal the class's own, and the trunk equals the stack."""
    torch.manual_seed(0)
    tokenizer = tokens.build()
    trunk, full = models.text_encoder(tokenizer, 7), models.text_encoder(tokenizer)
    complete(trunk, full)
    blind(trunk)
    for mode in MODES:
        ids = [present(tokenizer, f"a {word} ball moves", mode)[0] for word in ("red", "blue")]
        with torch.no_grad():
            both = embed(full, ids, 50)
            alone = torch.cat([embed_one(full, torch.tensor([row]), 50) for row in ids])
            short = embed(trunk, ids, 6)
        assert (both - alone).abs().max() < 1e-5 * alone.abs().max(), mode
        assert torch.equal(both, short)
