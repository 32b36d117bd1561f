"""Pages of lists: a total order, and opaque tokens that are bound to their list and filter."""

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime

from services.common.rpc.errors import MeshError, Reason

_DEFAULT, _MOST = 50, 200


@dataclass(frozen=True)
class Place:
    """The last row of a page: the next one starts after it."""

    time: datetime
    row_id: str


def page_size(asked: int) -> int:
    """0 means the default and too much the most; negative is refused."""
    if asked < 0:
        raise MeshError(Reason.INVALID_FIELD, "a page has no negative size", field="page_size")
    return min(asked or _DEFAULT, _MOST)


def make_token(place: Place, scope: str) -> str:
    """The token of the page after `place` in the list that `scope` describes."""
    content = [place.time.isoformat(), place.row_id, _digest(scope)]
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def read_token(token: str, scope: str) -> Place | None:
    """Where the page starts; None for the first. BAD_PAGE_TOKEN if it is not of this list."""
    if not token:
        return None
    try:
        time, row_id, digest = json.loads(base64.urlsafe_b64decode(token.encode()))
        place = Place(datetime.fromisoformat(time), str(row_id))
    except (ValueError, TypeError) as error:
        raise _bad_token() from error
    if digest != _digest(scope) or place.time.tzinfo is None or "\0" in place.row_id:
        raise _bad_token()
    return place


def _digest(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:16]


def _bad_token() -> MeshError:
    words = "the page token is not of this list and filter"
    return MeshError(Reason.BAD_PAGE_TOKEN, words, field="page_token")
