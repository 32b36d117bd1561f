"""A checkpoint's files: where they are, and whether they are all there."""

import json
from pathlib import Path
from typing import Any

INDEX = "modular_model_index.json"
# What an instance offers by default, beside the index; not part of what is computed.
DEFAULTS_FILE = "reelmesh.json"


class CheckpointError(ValueError):
    """The checkpoint cannot be used as it is; the message says what to do about it."""


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


def fetch_configs(checkpoint: str, revision: str | None) -> Path:
    """A folder with the JSON files of a hub id, fetched if they are not cached."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(checkpoint, revision=revision, allow_patterns=["*.json"]))
    except (ValueError, OSError) as error:  # every hub and network error is one of the two
        raise CheckpointError(
            f"{checkpoint} is no folder here, and as a hub id it cannot be read "
            f"({last_line(error)}): check the spelling, the network and your access to it"
        ) from error


def component_folder(checkpoint: str, revision: str | None, name: str) -> Path:
    """The folder of one component, all of whose files are there; a hub id's is fetched."""
    folder = local_folder(checkpoint)
    if folder is None:
        from huggingface_hub import snapshot_download

        place = place_of(fetch_configs(checkpoint, revision), name)
        try:
            wanted = [INDEX, f"{place}/*"]
            folder = Path(snapshot_download(checkpoint, revision=revision, allow_patterns=wanted))
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{checkpoint} cannot be fetched: {last_line(error)}") from error
    require_component(folder, name)
    return folder / place_of(folder, name)


def place_of(folder: Path, name: str) -> str:
    """The subfolder that the index gives a component: two of the same weights may share one."""
    entry = read_json(folder / INDEX).get(name)
    known = entry[2] if isinstance(entry, list) and len(entry) > 2 else {}
    return str(known.get("subfolder") or name)


def require_component(folder: Path, name: str) -> None:
    """Raise `CheckpointError` if a component's folder, or one of its shards, is not there."""
    part = folder / place_of(folder, name)
    if not any(part.glob("*.json")):
        raise CheckpointError(
            f"{part} is missing or empty: the checkpoint is incomplete, get it again"
        )
    shards = [
        shard
        for index in part.glob("*.safetensors.index.json")
        for shard in set(read_json(index)["weight_map"].values())
    ]
    missing = [shard for shard in sorted(shards) if not (part / shard).is_file()]
    if missing:
        raise CheckpointError(f"{part} lacks {', '.join(missing)}: download the checkpoint again")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a missing or broken file is a `CheckpointError`."""
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


def last_line(error: Exception) -> str:
    """What a long error of a library ends with."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
