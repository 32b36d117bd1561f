"""How a method that a later version brings refuses today."""

from services.common.rpc.errors import MeshError, Reason


def not_yet(method: str, instead: str) -> MeshError:
    """UNIMPLEMENTED, with what to do instead."""
    return MeshError(Reason.NOT_IMPLEMENTED, f"{method} is not implemented yet: {instead}")
