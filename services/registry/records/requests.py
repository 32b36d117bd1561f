"""Creating calls that are made twice: the first answer is kept, without secrets, for a day."""

import hashlib
from datetime import timedelta
from typing import TypeVar

from google.protobuf.message import Message
from sqlalchemy import bindparam, delete, insert
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from services.common.rpc.errors import MeshError, Reason
from services.registry.columns import utc_now
from services.registry.schema import RequestRow, table_of

M = TypeVar("M", bound=Message)

_KEPT = timedelta(hours=24)
_LONGEST = 64

# Built once: building one takes longer than SQLite does.
_REQUESTS = table_of(RequestRow)
_FORGET = delete(_REQUESTS).where(
    _REQUESTS.c.owner_id == bindparam("old_owner_id"),
    _REQUESTS.c.method == bindparam("old_method"),
    _REQUESTS.c.request_id == bindparam("old_request_id"),
)
_KEEP = insert(_REQUESTS)


def check_request_id(request_id: str) -> None:
    """Refuse an id that cannot be kept."""
    if len(request_id) > _LONGEST or "\0" in request_id:
        words = f"a request_id has at most {_LONGEST} characters and no NUL"
        raise MeshError(Reason.INVALID_FIELD, words, field="request_id")


def find_answer(
    session: Session, owner_id: str, method: str, request_id: str, request: Message, answer: M
) -> M | None:
    """The first answer to this call, read into `answer`; None if the call is new.

    REQUEST_ID_REUSED if the id came with another body.
    """
    if not request_id:
        return None
    row = session.get(RequestRow, (owner_id, method, request_id))
    if row is None or row.create_time < utc_now() - _KEPT:
        return None
    if row.body_sha256 != _digest(request):
        raise MeshError(
            Reason.REQUEST_ID_REUSED,
            "this request_id came with another request before",
            field="request_id",
        )
    answer.ParseFromString(row.answer)
    return answer


def keep_answer(
    session: Session, owner_id: str, method: str, request_id: str, request: Message, answer: Message
) -> None:
    """Keep the answer for repeats, in the transaction of what it tells of."""
    if not request_id:
        return
    kept = {"owner_id": owner_id, "method": method, "request_id": request_id}
    # One that is too old to be repeated may still be there.
    session.execute(_FORGET, {f"old_{name}": value for name, value in kept.items()})
    made = {"body_sha256": _digest(request), "answer": answer.SerializeToString()}
    session.execute(_KEEP, {**kept, **made, "create_time": utc_now()})


def are_answers_old(session: Session) -> bool:
    """Whether there is any to forget."""
    return session.exec(_old().limit(1)).first() is not None


def forget_answers(session: Session) -> None:
    """Forget the answers that are not given again."""
    session.execute(delete(RequestRow).where(col(RequestRow.create_time) < utc_now() - _KEPT))


def _old() -> SelectOfScalar[str]:
    return select(RequestRow.request_id).where(col(RequestRow.create_time) < utc_now() - _KEPT)


def _digest(request: Message) -> str:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
