"""Owners and their keys. Of a key only a hash is kept."""

import hashlib
import hmac
from collections.abc import Sequence

from sqlalchemy import bindparam
from sqlmodel import Session, col, select

from services.common.ids import new_id, new_secret
from services.common.rpc.errors import MeshError, Reason
from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.schema import KeyRow, OwnerRow

_LONGEST = 64


_LOCK = (
    select(OwnerRow)
    .where(col(OwnerRow.owner_id) == bindparam("owner_id"))
    .with_for_update()
    .execution_options(populate_existing=True)
)


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
    return session.exec(_LOCK, params={"owner_id": owner_id}).one()


def lock_known_owner(session: Session, owner_id: str) -> OwnerRow:
    """The owner, as `lock_owner`; OWNER_NOT_FOUND if there is none."""
    if "\0" in owner_id or session.get(OwnerRow, owner_id) is None:
        raise MeshError(Reason.OWNER_NOT_FOUND, "there is no such owner")
    return lock_owner(session, owner_id)


def list_owners(session: Session, after: str, size: int) -> Sequence[OwnerRow]:
    """Owners by name, those after the name `after`, at most `size`."""
    query = select(OwnerRow).where(col(OwnerRow.name) > after)
    return session.exec(query.order_by(col(OwnerRow.name)).limit(size)).all()


def create_key(session: Session, owner_id: str, label: str) -> tuple[KeyRow, str]:
    """A new key of the owner and its secret, which is kept nowhere. OWNER_NOT_FOUND."""
    if len(label) > _LONGEST or "\0" in label:
        words = f"a label has at most {_LONGEST} characters"
        raise MeshError(Reason.INVALID_FIELD, words, field="label")
    lock_known_owner(session, owner_id)
    secret = new_secret("rmk")
    key = KeyRow(key_id=new_id("key"), owner_id=owner_id, label=label, secret_sha256=_hash(secret))
    session.add(key)
    session.flush()
    return key, secret


def list_keys(session: Session, owner_id: str) -> Sequence[KeyRow]:
    """The owner's keys, newest first, ended ones too. OWNER_NOT_FOUND."""
    if "\0" in owner_id or session.get(OwnerRow, owner_id) is None:
        raise MeshError(Reason.OWNER_NOT_FOUND, "there is no such owner")
    query = select(KeyRow).where(col(KeyRow.owner_id) == owner_id)
    return session.exec(
        query.order_by(col(KeyRow.create_time).desc(), col(KeyRow.key_id).desc())
    ).all()


def revoke_key(session: Session, key_id: str) -> None:
    """End the key now. One that has ended stays as it is; KEY_NOT_FOUND if there is none."""
    query = select(KeyRow).where(col(KeyRow.key_id) == key_id).with_for_update()
    key = session.exec(query).first() if "\0" not in key_id else None
    if key is None:
        raise MeshError(Reason.KEY_NOT_FOUND, "there is no such key")
    if key.revoke_time is None:
        key.revoke_time = utc_now()
        session.add(key)
        touch(session, key.owner_id)


def require_key(session: Session, key_id: str) -> None:
    """UNAUTHENTICATED if the key has been ended since its call began."""
    key = session.get(KeyRow, key_id)
    if key is None or key.revoke_time is not None:
        raise MeshError(Reason.UNAUTHENTICATED, "the API key is not valid here any more")


def find_by_secret(session: Session, secret: str) -> OwnerRow | None:
    """Whose key this is, as `find_key`."""
    found = find_key(session, secret)
    return None if found is None else found[1]


def find_key(session: Session, secret: str) -> tuple[KeyRow, OwnerRow] | None:
    """The key and whose it is; None if it has ended.

    What is looked up is a hash: its timing tells nothing of the secret.
    """
    hashed = _hash(secret)
    found = session.exec(
        select(KeyRow, OwnerRow)
        .join(OwnerRow, col(OwnerRow.owner_id) == col(KeyRow.owner_id))
        .where(col(KeyRow.secret_sha256) == hashed, col(KeyRow.revoke_time).is_(None))
    ).first()
    if found is None or not hmac.compare_digest(found[0].secret_sha256, hashed):
        return None
    return found[0], found[1]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
