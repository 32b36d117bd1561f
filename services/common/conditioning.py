"""What a conditioning file holds, mode by mode: the contract of encoder and sampler.

It is one safetensors file whose tensors have diffusers' names; a list is its name, a dot and the
place in packed order. The mode says which tensors there are, never the other way round:

- every mode: `prompt_embeds` (1, tokens, text_dim) and `text_token_tags` (tokens,) int64, the
  modality of every row: 0 video, 1 text
- fl2va: `keyframe_anchors` (k,) int64, places in KEYFRAME_ANCHORS, and `condition_latents.0` ...
- ref2va: `reference_kinds` (n,) int64, places in REFERENCE_KINDS, `reference_has_audio` (n,) int64,
  `condition_latents.0` ... one an image or video, `audio_condition_latents.0` ... one a sound

`condition_latents.i` are (1, 24, frames, height/16, width/16) fp32, one latent frame for a still
picture; `audio_condition_latents.i` are (2 * frames, 32) fp32, the left channel's rows first.
"""

PROMPT_EMBEDS = "prompt_embeds"
TEXT_TOKEN_TAGS = "text_token_tags"
KEYFRAME_ANCHORS_TENSOR = "keyframe_anchors"
REFERENCE_KINDS_TENSOR = "reference_kinds"
REFERENCE_HAS_AUDIO_TENSOR = "reference_has_audio"
CONDITION_LATENTS = "condition_latents"
AUDIO_CONDITION_LATENTS = "audio_condition_latents"

KEYFRAME_ANCHORS = ("first", "last")
REFERENCE_KINDS = ("image", "video", "audio")
# Of the released checkpoint (diffusers, `MiniMaxH3Ref2VASetupStep`).
MOST_REFERENCES = {"image": 9, "video": 3, "audio": 3}
MOST_REFERENCES_IN_ALL = 12


def listed(name: str, place: int) -> str:
    """The name of one tensor of a list, for example "condition_latents.0"."""
    return f"{name}.{place}"
