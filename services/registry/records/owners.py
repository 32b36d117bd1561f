"""Owners and their keys. Of a key only a hash is kept."""

import hashlib
import hmac
from collections.abc import Sequence

from sqlmodel import Session, col, select

from services.common.ids import new_id, new_secret
from services.common.rpc.errors import MeshError, Reason
from services.registry.schema import KeyRow, OwnerRow

_LONGEST = 64


def create_owner(session: Session, name: str, *, admin: bool) -> OwnerRow:
    """A new owner; OWNER_EXISTS if the name is taken."""
    if not name.strip() or len(name) > _LONGEST or "\0" in name:
        words = f"a name has 1 to {_LONGEST} characters"
        raise MeshError(Reason.INVALID_FIELD, words, field="name")
    if find_by_name(session, name) is not None:
        raise MeshError(Reason.OWNER_EXISTS, "an owner of this name exists", field="name")
    owner = OwnerRow(owner_id=new_id("own"), name=name, admin=admin)
    session.add(owner)
    session.flush()
    return owner


def find_by_name(session: Session, name: str) -> OwnerRow | None:
    """The owner of this name."""
    return session.exec(select(OwnerRow).where(col(OwnerRow.name) == name)).first()


def lock_owner(session: Session, owner_id: str) -> OwnerRow:
    """The owner, held until the transaction ends: an owner's creating calls take turns."""
    query = select(OwnerRow).where(col(OwnerRow.owner_id) == owner_id).with_for_update()
    return session.exec(query).one()


def list_owners(session: Session, after: str, size: int) -> Sequence[OwnerRow]:
    """Owners by name, those after the name `after`, at most `size`."""
    query = select(OwnerRow).where(col(OwnerRow.name) > after)
    return session.exec(query.order_by(col(OwnerRow.name)).limit(size)).all()


def create_key(session: Session, owner_id: str, label: str) -> tuple[KeyRow, str]:
    """A new key of the owner and its secret, which is kept nowhere. OWNER_NOT_FOUND."""
    if len(label) > _LONGEST or "\0" in label:
        words = f"a label has at most {_LONGEST} characters"
        raise MeshError(Reason.INVALID_FIELD, words, field="label")
    if "\0" in owner_id or session.get(OwnerRow, owner_id) is None:
        raise MeshError(Reason.OWNER_NOT_FOUND, "there is no such owner")
    secret = new_secret("rmk")
    key = KeyRow(key_id=new_id("key"), owner_id=owner_id, label=label, secret_sha256=_hash(secret))
    session.add(key)
    session.flush()
    return key, secret


def find_by_secret(session: Session, secret: str) -> OwnerRow | None:
    """Whose key this is. What is looked up is a hash: its timing tells nothing of the secret."""
    hashed = _hash(secret)
    found = session.exec(
        select(KeyRow, OwnerRow)
        .join(OwnerRow, col(OwnerRow.owner_id) == col(KeyRow.owner_id))
        .where(col(KeyRow.secret_sha256) == hashed)
    ).first()
    if found is None or not hmac.compare_digest(found[0].secret_sha256, hashed):
        return None
    return found[1]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
