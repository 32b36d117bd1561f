"""The sizes of the demo checkpoint's models: the real classes, 24 million weights together.

One transformer serves all modes and is stored once, so that it may be twice as large.
"""

from typing import Any

from tools.tiny_models import untyped

TEXT_WIDTH = 64
TEXT_LAYERS = 51  # the model is conditioned on `hidden_states[50]`, which the last one only follows
TRAINED_TEXT_LAYERS = 6  # the others are exact identities
AUDIO_CHANNELS = 32
VIDEO_CHANNELS = 24
PICTURE_TOKENS = 16  # text rows of one 128x128 picture: 16-pixel patches, merged by two


def text_encoder(tokenizer: Any, layers: int = TEXT_LAYERS) -> Any:
    """Qwen3-VL with `layers` text layers for a tokenizer of `tokens.build`, weights random."""
    transformers = untyped("transformers")
    token = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": (len(tokenizer) + 63) // 64 * 64,
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 96,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 1024,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "patch_size": 16,
            "out_hidden_size": TEXT_WIDTH,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def processor(tokenizer: Any) -> Any:
    """The processor of pictures and videos; 128x128 pixels pass through it unscaled."""
    transformers = untyped("transformers")
    pixels = {"shortest_edge": 32 * 32, "longest_edge": 256 * 256}
    patches = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    return transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=pixels, **patches),
        tokenizer=tokenizer,
        # A video's bounds count the pixels of all its frames.
        video_processor=transformers.Qwen3VLVideoProcessor(
            size={"shortest_edge": 32 * 32, "longest_edge": 16 * 128 * 128}, **patches
        ),
    )


def video_vae(**changes: Any) -> Any:
    """The video VAE. Its decoder is wide: each token paints 3,072 pixels from one linear map."""
    sizes: dict[str, Any] = {
        "block_out_channels": (16, 32, 48, 64, 64, 80),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "spatial_padding_mode": "constant",
        "decoder_num_layers": 4,
        "decoder_num_attention_heads": 6,
        "decoder_attention_head_dim": 64,
        "decoder_ffn_mult": 2,
    }
    return untyped("diffusers").AutoencoderKLMiniMaxH3(**{**sizes, **changes})


def audio_vae(**changes: Any) -> Any:
    """The audio VAE with three upsampling layers instead of seven, for speed on a CPU."""
    sizes: dict[str, Any] = {
        "encoder_dim": 8,
        "latent_dim": 128,
        "decoder_dim": 128,
        "decoder_rates": (8, 10, 10),
        "decoder_kernel_sizes": (16, 20, 20),
        "resblock_kernel_sizes": (3,),
        "resblock_dilation_sizes": ((1, 3),),
        "latents_mean": [0.0] * AUDIO_CHANNELS,
        "latents_std": [1.0] * AUDIO_CHANNELS,
    }
    return untyped("diffusers").AutoencoderKLMiniMaxH3Audio(**{**sizes, **changes})


def transformer(**changes: Any) -> Any:
    """The denoiser, 8 heads: Ulysses degrees 2, 4 and 8 divide them."""
    sizes: dict[str, Any] = {
        "num_attention_heads": 8,
        "attention_head_dim": 40,
        "hidden_size": 320,
        "num_layers": 8,
        "num_refiner_layers": 1,
        "ffn_dim": 768,
        "text_dim": TEXT_WIDTH,
        "freq_dim": 128,
        "time_embed_hidden_dim": 128,
        # AdaLN maps it to 18 widths in every block: most of the weights if it were wide.
        "time_embed_dim": 32,
        "rope_freq_dim": 6,
        "rope_theta": 1000.0,
    }
    return untyped("diffusers").MiniMaxH3Transformer3DModel(**{**sizes, **changes})


def count(model: Any) -> int:
    """Weights of a model."""
    return sum(weight.numel() for weight in model.parameters())
