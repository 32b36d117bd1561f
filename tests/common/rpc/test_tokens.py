"""Mesh tokens: made once, private, and one for each role."""

import threading
from pathlib import Path

import pytest

from services.common.files import DamagedFile
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.common.rpc.tokens import load_tokens


async def test_tokens_are_made_once_and_private(tmp_path: Path) -> None:
    """Many processes that start at once agree on one file, readable by its owner only."""
    path = tmp_path / "home" / "mesh-tokens.json"
    seen: list[str] = []
    threads = [
        threading.Thread(target=lambda: seen.append(load_tokens(path).of(Role.STAGE)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[]", b'{"stage": "x"}', b"\xff"])
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    """With its name and what to do, and nothing is made in its place."""
    path = tmp_path / "mesh-tokens.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"mesh-tokens\.json does not hold.*restore"):
        load_tokens(path)
    assert path.read_bytes() == content


async def test_token_names_its_role_and_a_guess_none(tmp_path: Path) -> None:
    """Every role has a token of its own; any other text is UNAUTHENTICATED."""
    tokens = load_tokens(tmp_path / "tokens.json")
    for role in (Role.REGISTRY, Role.STAGE, Role.OPERATOR):
        assert (await tokens.authenticate(tokens.of(role))).role is role
    for guess in ("", "rmt_", tokens.of(Role.STAGE)[:-1], "é"):
        with pytest.raises(MeshError) as caught:
            await tokens.authenticate(guess)
        assert caught.value.reason is Reason.UNAUTHENTICATED
