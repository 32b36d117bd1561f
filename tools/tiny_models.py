"""The models of the tiny checkpoint: the real classes, small, with weights that show mistakes."""

import importlib
import math
from typing import Any

# Prompt words that get tokens of their own; every other text falls back to bytes.
_WORDS = (
    "a an and at are ball beach bird blue bright camera cat city close cloud cold color dark day "
    "dog down drifts evening falls fast field fire flies forest glass gold green grey hand her his "
    "in into is lake leaves left light long man moon morning motion mountain moves music night "
    "ocean of on orange over people person plays purple rain red right river road rolls runs sand "
    "scene sea shot sky slow slowly small snow soft sound square stands star street sun the to "
    "train tree under up voice walks warm water wave waves white wide wind with woman yellow"
).split()
_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_TEXT_LIMIT_TOKENS = 1024
_AUDIO_GAIN = 0.18
_UPSAMPLING_GAIN = 3.0


def untyped(name: str) -> Any:
    """A library whose types are no help: its models have the attributes of their weights."""
    return importlib.import_module(name)


def _bpe() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level vocabulary: 256 bytes, then the pieces of the words above, left to right."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocab = {byte: index for index, byte in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        spelled = "\u0120" + word  # byte-level BPE writes the space before a word as U+0120
        for end in range(1, len(spelled)):
            if spelled[: end + 1] not in vocab:
                vocab[spelled[: end + 1]] = len(vocab)
                merges.append((spelled[:end], spelled[end]))
    return vocab, merges


def text_parts() -> tuple[Any, Any, Any]:
    """The conditioner, its tokenizer and its processor."""
    import torch

    transformers = untyped("transformers")

    vocab, merges = _bpe()
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        additional_special_tokens=list(_SPECIAL_TOKENS[1:]),
        model_max_length=_TEXT_LIMIT_TOKENS,
    )
    pixels = {"shortest_edge": 32 * 32, "longest_edge": 256 * 256}
    patches = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    processor = transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=pixels, **patches),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(size=pixels, **patches),
    )
    token = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": math.ceil(len(tokenizer) / 64) * 64,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 51,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": _TEXT_LIMIT_TOKENS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500_000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": 16,
            "out_hidden_size": 64,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    text_encoder = transformers.Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        # Tokens far apart, layers that add to them without drowning them.
        text_encoder.model.language_model.embed_tokens.weight.normal_()
        for weight in text_encoder.model.language_model.layers.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.5 / math.sqrt(weight.shape[1]))
    return text_encoder, tokenizer, processor


def transformer() -> Any:
    """The denoiser: 8 heads, so that Ulysses degrees 2, 4 and 8 divide them."""
    import torch

    model = untyped("diffusers").MiniMaxH3Transformer3DModel(
        num_attention_heads=8,
        attention_head_dim=32,
        hidden_size=192,
        num_layers=4,
        num_refiner_layers=1,
        ffn_dim=512,
        text_dim=64,
        freq_dim=64,
        time_embed_hidden_dim=192,
        time_embed_dim=96,
        rope_freq_dim=4,
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".linear.weight" in name or "attn.to_" in name or ".ff" in name:
                weight.normal_(std=1.0 / math.sqrt(weight.shape[1]))
        # A data-ward velocity that points away from the noise, as a trained one does.
        for head, entry in (
            (model.proj_out, model.proj_in),
            (model.audio_proj_out, model.audio_proj_in),
        ):
            head.weight.normal_(std=0.5 / math.sqrt(head.weight.shape[1]))
            head.weight.sub_(0.5 * torch.linalg.pinv(entry.weight))
    return model


def video_vae() -> Any:
    """The video VAE, with layer scales at one: a fresh one's zeros would hide every error."""
    import torch

    vae = untyped("diffusers").AutoencoderKLMiniMaxH3(
        block_out_channels=(16, 32, 32, 64, 64, 128),
        layers_per_block=1,
        norm_num_groups=8,
        decoder_num_layers=4,
        decoder_num_attention_heads=4,
        decoder_attention_head_dim=32,
    )
    decoder = vae.decoder
    with torch.no_grad():
        decoder.proj_in.weight.normal_(std=4.0 / math.sqrt(24))
        decoder.register_tokens.normal_(std=0.5)
        for block in decoder.transformer_blocks:
            block.scale1.fill_(1.0)
            block.scale2.fill_(1.0)
        # Each latent voxel paints 4 frames of 16x16 pixels: one colour and a soft shade across it.
        coarse = torch.randn(128, 3, 1, 1, 1) + 0.2 * torch.randn(128, 3, 2, 3, 3)
        coarse *= 1.1 / math.sqrt(128)
        patch = torch.nn.functional.interpolate(
            coarse, size=(4, 16, 16), mode="trilinear", align_corners=True
        )  # (dim, colour, frame, y, x)
        decoder.proj_out.weight.copy_(patch.reshape(128, -1).T)
        decoder.proj_out.bias.zero_()
    return vae


def audio_vae() -> Any:
    """The audio VAE with three upsampling layers instead of seven, for speed on a CPU."""
    import torch

    vae = untyped("diffusers").AutoencoderKLMiniMaxH3Audio(
        encoder_dim=8,
        latent_dim=128,
        decoder_dim=128,
        decoder_rates=(8, 10, 10),
        decoder_kernel_sizes=(16, 20, 20),
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 3),),
        latents_mean=[0.0] * 32,
        latents_std=[1.0] * 32,
    )
    with torch.no_grad():
        vae.dec_in_proj.bias.zero_()
        for name, weight in vae.decoder.named_parameters():
            if name.endswith("bias"):
                weight.zero_()  # silence stays silence
            elif name.endswith("beta"):
                weight.fill_(4.0)  # logarithmic: almost no rectified part, which is a constant
        # Smooth upsampling in random mixtures of channels (a fresh one hisses). The middle one
        # works at 3,200 Hz and carries the latents, which vary slowly, on tones of 320 and 640 Hz.
        for (up,), harmonics in zip(vae.decoder.ups, ((0,), (1, 2), (0,)), strict=True):
            inputs, outputs, taps = up.weight_v.shape
            harmonic = torch.tensor(harmonics).repeat(inputs)[:inputs, None, None]
            tone = torch.cos(4 * math.pi * harmonic * torch.arange(taps) / taps)
            mixture = torch.randn(inputs, outputs, 1)
            up.weight_v.copy_(mixture * torch.hann_window(taps) * tone)
            up.weight_g.fill_(_UPSAMPLING_GAIN)
        vae.decoder.conv_post.weight_g.fill_(_AUDIO_GAIN)
    return vae
