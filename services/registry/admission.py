"""Decides at the door whether a job can run: the limits, a ready encoder, the prompt's tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
import structlog

from reelmesh.v1 import encoder_pb2, jobs_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.database import Database
from services.registry.lifecycle import InstanceState, Stage
from services.registry.peers import Peers
from services.registry.records.instances import present
from services.registry.resolution import (
    Resolution,
    check_length,
    check_prompt,
    check_tokens,
    resolve,
)
from services.registry.schema import InstanceRow
from services.registry.stages import StageCalls

log = structlog.get_logger()

_RETRY_S = 5.0


@dataclass(frozen=True)
class Admitted:
    """A request that can run."""

    resolution: Resolution
    prompt_tokens: int


class Admission:
    """Takes no slot and writes nothing."""

    def __init__(self, database: Database, peers: Peers, calls: StageCalls) -> None:
        self._database = database
        self._peers = peers
        self._calls = calls

    async def admit(self, spec: jobs_pb2.JobSpec) -> Admitted:
        """The request resolved, or the MeshError that names its field.

        UNAVAILABLE NO_ENCODER if no encoder is READY to count the prompt's tokens.
        """
        check_prompt(spec.prompt)
        instances = await self._database.read(present)
        encoders = _encoders(instances)
        if not encoders:
            raise _no_encoder()
        digest = _capabilities(encoders[0]).checkpoint_digest
        resolution = resolve(spec, _by_stage(instances, digest))
        most = max(_capabilities(one).limits.max_prompt_tokens for one in encoders)
        check_length(spec.prompt, most)
        same = [one for one in encoders if _capabilities(one).checkpoint_digest == digest]
        measured = await self._inspect(same, spec.prompt)
        check_tokens(measured.prompt_tokens, measured.max_prompt_tokens or most)
        return Admitted(resolution, measured.prompt_tokens)

    async def _inspect(
        self, encoders: Sequence[InstanceRow], prompt: str
    ) -> encoder_pb2.InspectResponse:
        for encoder in encoders:
            try:
                return await self._calls.inspect_prompt(self._peers.peer(encoder.endpoint), prompt)
            except MeshError as error:
                if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                    raise MeshError(error.reason, error.message, field="spec.prompt") from error
                log.warning("encoder_not_reached", asked=encoder.instance_id, reason=error.reason)
        raise _no_encoder()


def _encoders(instances: Sequence[InstanceRow]) -> list[InstanceRow]:
    """READY encoders; first those whose checkpoint most stages have."""
    stages: dict[str, set[Stage]] = {}
    for one in instances:
        stages.setdefault(_capabilities(one).checkpoint_digest, set()).add(one.stage)
    ready = [
        one for one in instances if one.stage is Stage.ENCODE and one.state is InstanceState.READY
    ]
    return sorted(ready, key=lambda one: -len(stages[_capabilities(one).checkpoint_digest]))


def _by_stage(
    instances: Sequence[InstanceRow], digest: str
) -> Mapping[Stage, list[stage_pb2.Capabilities]]:
    """What the instances with this checkpoint can do, by stage."""
    by_stage: dict[Stage, list[stage_pb2.Capabilities]] = {}
    for one in instances:
        capabilities = _capabilities(one)
        if capabilities.checkpoint_digest in ("", digest):
            by_stage.setdefault(one.stage, []).append(capabilities)
    return by_stage


def _capabilities(instance: InstanceRow) -> stage_pb2.Capabilities:
    return stage_pb2.Capabilities.FromString(instance.capabilities)


def _no_encoder() -> MeshError:
    words = "no encoder is ready to measure the prompt; nothing was queued"
    return MeshError(Reason.NO_ENCODER, words, retry_after_s=_RETRY_S)
