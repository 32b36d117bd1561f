"""Exit codes, and how an error is told to a person."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

import grpc

from services.cli.access import NoAccess
from services.common.rpc.errors import TABLE, MeshError

OK, JOB_FAILED, USAGE, REFUSED, NO_KEY, NOT_FOUND, AWAY, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

HELP = (
    "Exit codes: 0 done · 1 the job failed or was cancelled · 2 wrong usage · 3 refused · "
    "4 no valid key · 5 not found · 6 the service cannot be reached · 130 interrupted"
)

_CODES = {
    grpc.StatusCode.UNAUTHENTICATED: NO_KEY,
    grpc.StatusCode.PERMISSION_DENIED: NO_KEY,
    grpc.StatusCode.NOT_FOUND: NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE: AWAY,
    grpc.StatusCode.DEADLINE_EXCEEDED: AWAY,
}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's work; end the process with a sentence and a code if it fails."""
    try:
        asyncio.run(work)
    except NoAccess as error:
        fail(str(error), NO_KEY)
    except MeshError as error:
        fail_with(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        fail(str(error), USAGE)


def fail_with(error: MeshError) -> NoReturn:
    """Tell a MeshError: what is wrong, with which field, and what to do."""
    where = f" ({error.field})" if error.field else ""
    words = f"{error.message}{where}\n  {error.reason}: {TABLE[error.reason].advice}"
    if error.retry_after_s:
        words += f" Try again in {error.retry_after_s:.0f} s."
    fail(words, _CODES.get(error.code, REFUSED))


def fail(words: str, code: int) -> NoReturn:
    """Say it on standard error and end."""
    print(f"reelmesh: {words}", file=sys.stderr)
    sys.exit(code)
