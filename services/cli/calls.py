"""One unary call as the clients make it: with our metadata, a deadline, and MeshError."""

from typing import Any

from services.common.rpc.channel import Peer, calling

_CALL_S = 20.0


async def call(peer: Peer, method: Any, request: Any) -> Any:
    """The answer, or the MeshError that the peer raised."""
    async with calling():
        return await method(request, metadata=peer.metadata(), timeout=_CALL_S)
