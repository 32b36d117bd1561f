"""Creating calls that are made twice: the first answer is kept, without secrets, for a day."""

import hashlib
from datetime import timedelta
from typing import TypeVar

from google.protobuf.message import Message
from sqlalchemy import delete
from sqlmodel import Session, col

from services.common.rpc.errors import MeshError, Reason
from services.registry.columns import utc_now
from services.registry.schema import RequestRow

M = TypeVar("M", bound=Message)

_KEPT = timedelta(hours=24)
_LONGEST = 64


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
    """Keep the answer for repeats, in the transaction of what it tells of; forget old ones."""
    session.execute(delete(RequestRow).where(col(RequestRow.create_time) < utc_now() - _KEPT))
    if request_id:
        row = RequestRow(
            owner_id=owner_id,
            method=method,
            request_id=request_id,
            body_sha256=_digest(request),
            answer=answer.SerializeToString(),
        )
        session.add(row)


def _digest(request: Message) -> str:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
