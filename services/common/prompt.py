"""What a prompt must be before anyone counts its tokens."""

from services.common.rpc.errors import MeshError, Reason

# Far above any token limit; a longer text is not worth tokenizing.
_MOST_BYTES = 256 * 1024


def check_prompt(prompt: str, field: str) -> None:
    """PROMPT_EMPTY, INVALID_FIELD (NUL) or PROMPT_TOO_LONG (bytes), naming `field`.

    Half a surrogate pair never gets here: protobuf refuses it on both sides.
    """
    if not prompt.strip():
        raise MeshError(
            Reason.PROMPT_EMPTY, "say what the video should show and sound like", field=field
        )
    if "\0" in prompt:
        raise MeshError(
            Reason.INVALID_FIELD,
            f"the prompt holds a NUL at character {prompt.index(chr(0))}",
            field=field,
        )
    size = len(prompt.encode())
    if size > _MOST_BYTES:
        raise MeshError(
            Reason.PROMPT_TOO_LONG,
            f"the prompt has {size} bytes, the limit is {_MOST_BYTES}",
            field=field,
        )
