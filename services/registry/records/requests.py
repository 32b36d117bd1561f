"""Creating calls that are made twice: the first answer is kept, without secrets, for a day."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from google.protobuf.message import Message
from sqlalchemy import bindparam, delete, insert, tuple_
from sqlalchemy import select as select_columns
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
_NAMED = (_REQUESTS.c.method == bindparam("method")) & tuple_(
    _REQUESTS.c.owner_id, _REQUESTS.c.request_id
).in_(bindparam("keys", expanding=True))
_FIND = select_columns(
    _REQUESTS.c.owner_id, _REQUESTS.c.request_id, _REQUESTS.c.body_sha256, _REQUESTS.c.answer
).where(_NAMED, _REQUESTS.c.create_time >= bindparam("oldest"))
_FORGET = delete(_REQUESTS).where(_NAMED)
_KEEP = insert(_REQUESTS)


@dataclass(frozen=True)
class Kept:
    """What a call was answered first."""

    body_sha256: str
    answer: bytes

    def repeat(self, request: Message, answer: M) -> M:
        """The answer once more; REQUEST_ID_REUSED if this is another request."""
        if self.body_sha256 != digest(request):
            raise reused()
        answer.ParseFromString(self.answer)
        return answer


def reused() -> MeshError:
    """The error for an id that came with another body."""
    words = "this request_id came with another request before"
    return MeshError(Reason.REQUEST_ID_REUSED, words, field="request_id")


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
    kept = find_kept(session, method, [(owner_id, request_id)]).get((owner_id, request_id))
    return None if kept is None else kept.repeat(request, answer)


def find_kept(
    session: Session, method: str, keys: Collection[tuple[str, str]]
) -> Mapping[tuple[str, str], Kept]:
    """What was answered to calls with these (owner, request id), those that are not too old."""
    if not keys:
        return {}
    values = {"method": method, "keys": list(keys), "oldest": utc_now() - _KEPT}
    rows = session.connection().execute(_FIND, values)
    return {(row.owner_id, row.request_id): Kept(row.body_sha256, row.answer) for row in rows}


def keep_answer(
    session: Session, owner_id: str, method: str, request_id: str, request: Message, answer: Message
) -> None:
    """Keep the answer for repeats, in the transaction of what it tells of."""
    if request_id:
        kept = Kept(digest(request), answer.SerializeToString())
        keep_answers(session, method, {(owner_id, request_id): kept})


def keep_answers(session: Session, method: str, answers: Mapping[tuple[str, str], Kept]) -> None:
    """The same for many calls, by (owner, request id)."""
    if not answers:
        return
    # Some that are too old to be repeated may still be there.
    session.connection().execute(_FORGET, {"method": method, "keys": list(answers)})
    now = utc_now()
    rows = [
        {
            "owner_id": owner_id,
            "method": method,
            "request_id": request_id,
            "body_sha256": kept.body_sha256,
            "answer": kept.answer,
            "create_time": now,
        }
        for (owner_id, request_id), kept in answers.items()
    ]
    session.connection().execute(_KEEP, rows)


def are_answers_old(session: Session) -> bool:
    """Whether there is any to forget."""
    return session.exec(_old().limit(1)).first() is not None


def forget_answers(session: Session) -> None:
    """Forget the answers that are not given again."""
    session.execute(delete(RequestRow).where(col(RequestRow.create_time) < utc_now() - _KEPT))


def _old() -> SelectOfScalar[str]:
    return select(RequestRow.request_id).where(col(RequestRow.create_time) < utc_now() - _KEPT)


def digest(request: Message) -> str:
    """What tells two requests apart."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
