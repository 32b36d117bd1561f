"""Builds a small MiniMax-H3 checkpoint with the real model classes and random weights.

Everything that can run without 120 GB of weights runs on it: tests, the demo, a first look. It has
the released checkpoint's folder layout and its structural facts (51 text layers, three modality
tags, 17n+5 frames, 24 and 32 latent channels), so whatever loads it loads the released one. The
weights mean nothing; their scales are chosen so that a clip is an abstract moving picture with an
audible soundtrack and so that a mistake in any layer shows in the output. Two builds with the same
library versions are identical byte for byte.
"""

import argparse
import importlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEED = 20_260_101

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
_INDEX_PATH = "."  # the components lie beside the index; loading from a folder reads them there


def _untyped(name: str) -> Any:
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


def _text_parts() -> tuple[Any, Any, Any]:
    """The conditioner, its tokenizer and its processor."""
    import torch

    transformers = _untyped("transformers")

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


def _transformer() -> Any:
    """The denoiser: 8 heads, so that Ulysses degrees 2, 4 and 8 divide them."""
    import torch

    transformer = _untyped("diffusers").MiniMaxH3Transformer3DModel(
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
        for name, weight in transformer.named_parameters():
            if ".linear.weight" in name or "attn.to_" in name or ".ff" in name:
                weight.normal_(std=1.0 / math.sqrt(weight.shape[1]))
        # A data-ward velocity that points away from the noise, as a trained one does.
        for head, entry in (
            (transformer.proj_out, transformer.proj_in),
            (transformer.audio_proj_out, transformer.audio_proj_in),
        ):
            head.weight.normal_(std=0.5 / math.sqrt(head.weight.shape[1]))
            head.weight.sub_(0.5 * torch.linalg.pinv(entry.weight))
    return transformer


def _video_vae() -> Any:
    """The video VAE, with layer scales at one: a fresh one's zeros would hide every error."""
    import torch

    vae = _untyped("diffusers").AutoencoderKLMiniMaxH3(
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


def _audio_vae() -> Any:
    """The audio VAE with three upsampling layers instead of seven, for speed on a CPU."""
    import torch

    vae = _untyped("diffusers").AutoencoderKLMiniMaxH3Audio(
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


def _write(folder: Path) -> int:
    """Write every component and the index into `folder`; returns the number of parameters."""
    import torch

    diffusers = _untyped("diffusers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        text_encoder, tokenizer, processor = _text_parts()
        parts = {
            "text_encoder": text_encoder,
            "tokenizer": tokenizer,
            "processor": processor,
            "transformer": _transformer(),
            "scheduler": diffusers.MiniMaxH3Scheduler(shift=12.0),
            "audio_scheduler": diffusers.MiniMaxH3Scheduler(shift=3.0),
            "vae": _video_vae(),
            "audio_vae": _audio_vae(),
        }
    pipeline = diffusers.MiniMaxH3Blocks().init_pipeline()
    pipeline.update_components(**parts)
    pipeline.update_components(
        canvas_short_edge=128, canvas_max_pixels=128 * 128, reference_image_short_edge=64
    )
    pipeline.save_pretrained(str(folder), overwrite_modular_index=True)
    _make_relocatable(folder / "modular_model_index.json")
    facts = {"default_height": 128, "default_width": 128, "default_evaluations": 8}
    (folder / "reelmesh.json").write_text(json.dumps(facts, indent=2) + "\n")
    models = (part for part in parts.values() if isinstance(part, torch.nn.Module))
    return sum(weight.numel() for model in models for weight in model.parameters())


def _make_relocatable(index: Path) -> None:
    """The saved index names the folder it was written to; ours must load wherever it lies."""
    entries = json.loads(index.read_text())
    for entry in entries.values():
        if isinstance(entry, list) and entry[2].get("pretrained_model_name_or_path"):
            entry[2]["pretrained_model_name_or_path"] = _INDEX_PATH
    index.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")


def size_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def build(out: Path, force: bool = False) -> int:
    """Build the checkpoint at `out`; returns its number of parameters.

    It is written beside `out` and renamed, so that `out` is never half written. An existing `out`
    is replaced only with `force`, else `FileExistsError`.
    """
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists: keep it, or pass --force to build it again")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        parameters = _with_one_thread(lambda: _write(beside))
        beside.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        beside.replace(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return parameters


def _with_one_thread(work: Callable[[], int]) -> int:
    """Run `work` with one torch thread: the last bits of a sum depend on their number."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work()
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tiny_checkpoint",
        description="Build a small MiniMax-H3 checkpoint with the real classes, random weights.",
        epilog="example: python -m tools.tiny_checkpoint --out checkpoints/tiny",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--force", action="store_true", help="replace the folder if it exists")
    arguments = parser.parse_args()
    try:
        parameters = build(arguments.out, arguments.force)
    except FileExistsError as error:
        print(error)
        return
    print(f"{arguments.out}: {parameters:,} parameters, {size_bytes(arguments.out):,} bytes")


if __name__ == "__main__":
    main()
