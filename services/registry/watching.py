"""What a watch tells: every change of a job, or of all jobs of an owner, read from the event log.

A watch remembers a revision and nothing else. It reads the next few changes when its consumer has
taken the last ones, so a slow consumer costs no memory; and it reads the newest one as Get does, so
that the two never disagree.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from sqlmodel import Session

from reelmesh.v1 import jobs_pb2
from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import caller
from services.registry.database import Database
from services.registry.lifecycle import JOB_TERMINAL
from services.registry.records.events import (
    owner_revision,
    read_events,
    read_owner_events,
    revisions_of,
)
from services.registry.records.jobs import find_job
from services.registry.records.owners import require_key
from services.registry.records.queues import describe_job
from services.registry.signals import Signals, wait

# A watch looks at least this often: a place in the queue changes without an event of the job.
_LOOK_S = 1.0
# The consumer of one job that is further behind than this many changes is skipped ahead.
_REPLAY = 128
# Changes of an owner's jobs that are read at a time.
_PAGE = 64


@dataclass(frozen=True)
class _Look:
    """What a watch has to tell now."""

    jobs: list[jobs_pb2.Job]
    # Nothing that is watched is missing up to here.
    revision: int
    # Nothing will follow.
    ended: bool = False
    # More is there already.
    more: bool = False


class Watches:
    """Streams of what happens, with bookmarks at least every `bookmark_s` seconds."""

    def __init__(self, database: Database, signals: Signals, bookmark_s: float) -> None:
        self._database = database
        self._signals = signals
        self._bookmark_s = bookmark_s

    async def of_job(
        self, owner_id: str, job_id: str, start_revision: int
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        """The job at every change, until it has ended. Raises JOB_NOT_FOUND, REVISION_COMPACTED.

        DRAINING after a bookmark when the registry stops.
        """
        _check_revision(start_revision)
        after = start_revision - 1 if start_revision else None
        told = jobs_pb2.Job()
        spoke = time.monotonic()
        with self._signals.listening(job_id) as news:
            while True:
                news.clear()
                look = await self._look(
                    partial(_look_at_job, owner_id=owner_id, job_id=job_id, after=after)
                )
                telemetry.bind(job_id=look.jobs[-1].job_id)
                for job in look.jobs:
                    if job != told:
                        yield jobs_pb2.WatchJobResponse(job=job)
                        told, spoke = job, time.monotonic()
                after = look.jobs[-1].revision
                if look.ended:
                    return
                draining = self._signals.draining
                if draining or time.monotonic() - spoke >= self._bookmark_s:
                    bookmark = jobs_pb2.Bookmark(revision=max(look.revision, after))
                    yield jobs_pb2.WatchJobResponse(bookmark=bookmark)
                    spoke = time.monotonic()
                if draining:
                    raise _draining()
                await wait(news, min(_LOOK_S, self._bookmark_s))

    async def of_owner(
        self, owner_id: str, start_revision: int
    ) -> AsyncIterator[jobs_pb2.WatchJobsResponse]:
        """All jobs of the owner at every change, for ever. Raises as `of_job`.

        From now on it begins with a bookmark that says what "now" is.
        """
        _check_revision(start_revision)
        with self._signals.listening(owner_id) as news:
            spoke = time.monotonic()
            after = start_revision - 1
            if not start_revision:
                after = await self._database.read(partial(owner_revision, owner_id=owner_id))
                yield _owner_bookmark(after)
            while True:
                news.clear()
                look = await self._look(partial(_look_at_owner, owner_id=owner_id, after=after))
                for job in look.jobs:
                    yield jobs_pb2.WatchJobsResponse(job=job)
                    spoke = time.monotonic()
                after = look.revision
                draining = self._signals.draining
                if draining or time.monotonic() - spoke >= self._bookmark_s:
                    yield _owner_bookmark(after)
                    spoke = time.monotonic()
                if draining:
                    raise _draining()
                if not look.more:
                    await wait(news, min(_LOOK_S, self._bookmark_s))

    async def _look(self, look: Callable[[Session], _Look]) -> _Look:
        """What there is to tell, to a caller whose key has not been ended meanwhile."""
        key_id = caller().key_id

        def read(session: Session) -> _Look:
            require_key(session, key_id)
            return look(session)

        return await self._database.read(read)


def _look_at_job(session: Session, owner_id: str, job_id: str, after: int | None) -> _Look:
    job = find_job(session, owner_id, job_id)
    now = describe_job(session, job)
    newest, compacted = revisions_of(session, owner_id)
    past: list[jobs_pb2.Job] = []
    if after is not None:
        began_before = job.first_revision <= compacted
        if after < compacted and after + 1 < job.revision and began_before:
            raise _compacted("read the job and watch from its revision")
        past = read_events(session, job, after, _REPLAY + 1)
        # The newest event is the job as it is now; of too many only that one is told.
        past = past[:-1] if len(past) <= _REPLAY else []
    return _Look([*past, now], newest, ended=job.state in JOB_TERMINAL)


def _look_at_owner(session: Session, owner_id: str, after: int) -> _Look:
    newest, compacted = revisions_of(session, owner_id)
    if after < compacted and after + 1 < newest:
        raise _compacted("list the jobs and watch from the newest revision among them")
    events = read_owner_events(session, owner_id, after, _PAGE)
    told = [
        describe_job(session, job) if job.revision == message.revision else message
        for message, job in events
    ]
    more = len(events) == _PAGE
    revision = told[-1].revision if more else max(newest, after)
    return _Look(told, revision, more=more)


def _check_revision(start_revision: int) -> None:
    if start_revision < 0:
        words = "revisions begin at 1; 0 is how it is now"
        raise MeshError(Reason.INVALID_FIELD, words, field="start_revision")


def _owner_bookmark(revision: int) -> jobs_pb2.WatchJobsResponse:
    return jobs_pb2.WatchJobsResponse(bookmark=jobs_pb2.Bookmark(revision=revision))


def _draining() -> MeshError:
    return MeshError(Reason.DRAINING, "the registry is stopping; watch again soon")


def _compacted(instead: str) -> MeshError:
    words = f"what happened since that revision is not kept any more: {instead}"
    return MeshError(Reason.REVISION_COMPACTED, words)
