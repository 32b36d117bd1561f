"""Sends the start of a bound run, once: whoever has the right to, and nobody again after doubt."""

from collections.abc import Callable

import grpc
import structlog

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.backoff import Backoff
from services.registry.database import Database
from services.registry.lifecycle import RunEvent, RunState
from services.registry.peers import Peers
from services.registry.records.bindings import Binding, mark_sent
from services.registry.records.changes import make_failure
from services.registry.records.reports import apply_doubt, apply_event
from services.registry.stages import StageCalls

log = structlog.get_logger()

# The request itself is to blame: the same start would fail again.
_HOPELESS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
)


class Starter:
    """Sends starts. `address` is where stages reach the registry, for its own copies."""

    def __init__(
        self,
        database: Database,
        peers: Peers,
        calls: StageCalls,
        backoff: Backoff,
        address: Callable[[], str],
    ) -> None:
        self._database = database
        self._peers = peers
        self._calls = calls
        self._backoff = backoff
        self._address = address

    async def start(
        self, binding: Binding, may_send: bool
    ) -> tuple[stage_pb2.Run | None, stage_pb2.Failure | None]:
        """Send the start if that is ours to do: the run as it was answered, if it was.

        And the failure if the stage blamed the request for it.
        """
        run = binding.run
        if run.state is not RunState.BOUND:
            return None, None
        if run.start_sent and not may_send:
            await self._database.write(lambda session: apply_doubt(session, run.run_id))
            return None, None
        if may_send and run.start_sent and binding.job.cancel_requested:
            # Nobody else can send it, and we do not: it certainly never runs.
            await self._database.write(
                lambda session: apply_event(session, run.run_id, RunEvent.WITHDRAWN)
            )
            return None, None
        ours = run.start_sent or await self._database.write(
            lambda session: mark_sent(session, run.run_id)
        )
        if not ours:
            return None, None
        try:
            source = self._source(binding)
            answer = await self._calls.start(self._peers.peer(binding.endpoint), binding, source)
        except MeshError as error:
            log.warning("start_not_answered", reason=error.reason, error=error.message)
            return None, await self._unanswered(binding, error)
        return answer, None

    async def _unanswered(self, binding: Binding, error: MeshError) -> stage_pb2.Failure | None:
        run = binding.run
        if error.reason is Reason.STALE_RUN:
            # The one start that was ever sent met another generation or journal: it did not take
            # the run, and says so itself.
            self._backoff.add(run.instance_id)
            await self._database.write(
                lambda session: apply_event(session, run.run_id, RunEvent.NEVER_RAN)
            )
            return None
        await self._database.write(lambda session: apply_doubt(session, run.run_id))
        if error.code in _HOPELESS:
            return make_failure(error.reason, error.message, run.stage, resumable=False)
        return None

    def _source(self, binding: Binding) -> transfer_pb2.BundleRef | None:
        """The input of the run, where it can be read now."""
        source = binding.source
        if source is None:
            return None
        reachable = source.held and self._peers.is_open(source.endpoint)
        return source.ref(reachable, self._address())
