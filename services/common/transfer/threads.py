"""Blocking work beside the event loop that a cancellation cannot tear apart.

A thread cannot be cancelled. `asyncio.to_thread` leaves it running, or, while it waits for a free
thread, drops it: a file would stay open, or be closed under a thread that reads from it. gRPC does
cancel a call more than once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from services.common.transfer.writing import Sink

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread and, cancelled or not, do not leave before it ended."""
    task = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await settled(task)
        raise


async def settled(task: asyncio.Task[T]) -> T | None:
    """Wait for the end of a task whose error no longer matters: the caller is ending anyway.

    Cancellations meanwhile are not lost: they only add to the one, or the error, under way.
    """
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return None if task.cancelled() or task.exception() else task.result()


@asynccontextmanager
async def attached(attach: Callable[[], Sink[T]]) -> AsyncIterator[Sink[T]]:
    """A sink that is closed again whatever happens, a cancellation while it opens included."""
    opening = asyncio.create_task(asyncio.to_thread(attach))
    try:
        sink = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opened = await settled(opening)
        if opened is not None:
            await in_thread(opened.close)
        raise
    try:
        yield sink
    finally:
        await in_thread(sink.close)
