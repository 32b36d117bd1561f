"""Owners and their keys. Of a key only a hash is kept."""

import hashlib
import hmac
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from services.common.ids import new_id, new_secret
from services.common.rpc.errors import MeshError, Reason
from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.schema import KeyRow, OwnerRow, table_of

_LONGEST = 64


_LOCK = (
    select(OwnerRow)
    .where(col(OwnerRow.owner_id) == bindparam("owner_id"))
    .with_for_update()
    .execution_options(populate_existing=True)
)


_OWNERS = table_of(OwnerRow)
_LOCK_MANY = select_columns(_OWNERS.c.owner_id, _OWNERS.c.max_running, _OWNERS.c.max_waiting).where(
    _OWNERS.c.owner_id.in_(bindparam("owner_ids", expanding=True))
)
# An event that somebody writes for an owner does not keep us from it, only another number does.
_WAIT_FOR_ONE = _LOCK_MANY.with_for_update(key_share=True)
_TAKE_FREE = _LOCK_MANY.with_for_update(key_share=True, skip_locked=True)


class OwnLimits(NamedTuple):
    """An owner that is locked, and its own limits; none: the configured ones."""

    owner_id: str
    max_running: int | None
    max_waiting: int | None


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


def lock_owners(session: Session, owner_ids: Collection[str]) -> Mapping[str, OwnLimits]:
    """Owners, held until the transaction ends, by id: those of them that nobody else holds.

    A single one is waited for. Whoever holds one and waits for another could meet somebody who does
    the same the other way round, so of several those that are held are left out.
    OWNER_NOT_FOUND if a single one is not there.
    """
    query = _WAIT_FOR_ONE if len(owner_ids) == 1 else _TAKE_FREE
    rows = session.connection().execute(query, {"owner_ids": list(owner_ids)})
    locked = {row.owner_id: OwnLimits(*row) for row in rows}
    if len(owner_ids) == 1 and not locked:
        raise _owner_not_found()
    return locked


def lock_known_owner(session: Session, owner_id: str) -> OwnerRow:
    """The owner, as `lock_owner`; OWNER_NOT_FOUND if there is none."""
    if "\0" in owner_id or session.get(OwnerRow, owner_id) is None:
        raise _owner_not_found()
    return lock_owner(session, owner_id)


def list_owners(session: Session, after: str, size: int) -> Sequence[OwnerRow]:
    """Owners by name, those after the name `after`, at most `size`."""
    query = select(OwnerRow).where(col(OwnerRow.name) > after)
    return session.exec(query.order_by(col(OwnerRow.name)).limit(size)).all()


def set_quota(session: Session, owner: OwnerRow, running: int, waiting: int, weight: float) -> None:
    """Set the owner's limits. INVALID_FIELD names the one that cannot be."""
    for name, value in (("max_running", running), ("max_waiting", waiting)):
        if value < -1 or value > 10**6:
            words = f"{name} is -1 for no limit, or 0 to 1000000"
            raise MeshError(Reason.INVALID_FIELD, words, field=f"quota.{name}")
    if not 0.01 <= weight <= 100:
        words = "weight is 0.01 to 100; 1 is usual"
        raise MeshError(Reason.INVALID_FIELD, words, field="quota.weight")
    owner.max_running, owner.max_waiting, owner.weight = running, waiting, weight
    owner.in_turn = True
    session.add(owner)


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
        raise _owner_not_found()
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


def _owner_not_found() -> MeshError:
    return MeshError(Reason.OWNER_NOT_FOUND, "there is no such owner")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
