"""Who is calling, known once at the edge and read where it matters."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from services.common.rpc.errors import MeshError, Reason


class Role(StrEnum):
    """What a credential may be used for."""

    CLIENT = "client"
    REGISTRY = "registry"
    STAGE = "stage"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Identity:
    """The caller, from its credential and never from a field of a request."""

    role: Role
    owner_id: str = ""
    admin: bool = False
    # The key that it came with, to be asked for again while a long call lasts.
    key_id: str = ""


_current: ContextVar[Identity] = ContextVar("identity")


def set_caller(identity: Identity) -> None:
    """Bind the caller to this call. The interceptor's alone."""
    _current.set(identity)


def caller() -> Identity:
    """The caller of the call under way."""
    return _current.get()


def require_role(*roles: Role) -> Identity:
    """The caller, or ROLE_FORBIDDEN if its role is not one of these."""
    identity = caller()
    if identity.role not in roles:
        allowed = " or ".join(roles)
        raise MeshError(Reason.ROLE_FORBIDDEN, f"this call is for the role {allowed}")
    return identity


def require_admin() -> Identity:
    """The caller, or NOT_ADMIN."""
    identity = caller()
    if not identity.admin:
        raise MeshError(Reason.NOT_ADMIN, "this call needs an admin's key")
    return identity
