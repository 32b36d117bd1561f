"""What happens around every call, for all four kinds of it: errors, log context, the caller.

A guard is an async context manager around the handler. `edge` is the outermost: whatever a
handler raises leaves as a status, because a handler that raises CancelledError by itself would
send none and leave its client hanging.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import structlog
from grpc.aio import AbortError, ServicerContext

from services.common.ids import new_secret
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Identity, set_caller
from services.common.rpc.status import DETAILS_KEY, to_status

log = structlog.get_logger()

Context = ServicerContext[Any, Any]
Guard = Callable[[str, Context], AbstractAsyncContextManager[None]]
Authenticate = Callable[[str], Awaitable[Identity]]

# Metadata that only the log reads: "x-reelmesh-job-id" becomes job_id on every line.
LOG_KEYS = {f"x-reelmesh-{name}-id": f"{name}_id" for name in ("job", "run", "owner")}
_LOGGABLE = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
# Open to anyone: health for probes, reflection because the contracts are public.
_OPEN = ("/grpc.health.", "/grpc.reflection.")
_QUIET = (*_OPEN, "/reelmesh.v1.MeshService/Heartbeat", "/reelmesh.v1.RunService/GetRun")


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Runs guards around every handler, the first outermost."""

    def __init__(self, *guards: Guard) -> None:
        self._guards = guards

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler, whichever of the four kinds it is."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        for guard in reversed(self._guards):
            handler = _wrap(handler, method, guard)
        return handler


def _wrap(handler: Any, method: str, guard: Guard) -> Any:
    call = (
        handler.unary_unary or handler.stream_unary or handler.unary_stream or handler.stream_stream
    )

    async def unary_answer(request: Any, context: Context) -> Any:
        async with guard(method, context):
            return await call(request, context)

    async def stream_answer(request: Any, context: Context) -> AsyncIterator[Any]:
        async with guard(method, context):
            async for answer in call(request, context):
                yield answer

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(
        stream_answer if handler.response_streaming else unary_answer,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


async def abort(context: Context, error: MeshError) -> None:
    """End the call with the error's status and details."""
    status = to_status(error)
    trailers = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(error.code, error.message, trailing_metadata=trailers)


@asynccontextmanager
async def edge(method: str, context: Context) -> AsyncIterator[None]:
    """Bind the log context; turn whatever is raised into a status; log how the call ended."""
    metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
    bound = {
        name: str(metadata[key])
        for key, name in LOG_KEYS.items()
        if _LOGGABLE.match(str(metadata.get(key, "")))
    }
    asked = str(metadata.get("x-request-id", ""))
    request_id = asked if _LOGGABLE.match(asked) else new_secret("req")[:20]
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(method=method, request_id=request_id, **bound)
    began = time.monotonic()
    outcome = "OK"
    try:
        yield
    except AbortError:
        outcome = "ABORTED"
        raise
    except MeshError as error:
        outcome = error.reason
        await abort(context, error)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        outcome = "CANCELLED"
        if task is not None and task.cancelling():
            raise
        await abort(context, MeshError(Reason.INTERNAL, "the work was cancelled inside the server"))
    except Exception:
        outcome = "INTERNAL"
        log.exception("call_crashed")
        words = f"internal error; the log has it under request id {request_id}"
        await abort(context, MeshError(Reason.INTERNAL, words))
    finally:
        quiet = outcome == "OK" and method.startswith(_QUIET)
        level = log.debug if quiet else log.info
        level("call", outcome=outcome, duration_s=round(time.monotonic() - began, 4))


def authenticated(authenticate: Authenticate) -> Guard:
    """A guard that knows the caller by its bearer token before anything else is looked at."""

    @asynccontextmanager
    async def guard(method: str, context: Context) -> AsyncIterator[None]:
        if not method.startswith(_OPEN):
            metadata = dict(context.invocation_metadata() or ())
            scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise MeshError(Reason.UNAUTHENTICATED, "send metadata `authorization: Bearer KEY`")
            set_caller(await authenticate(token))
        yield

    return guard
