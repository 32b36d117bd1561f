"""Decides at the door whether a job can run: the limits, a ready encoder, the prompt's tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
import structlog
from sqlmodel import Session

from reelmesh.v1 import encoder_pb2, jobs_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import InstanceState, Stage
from services.registry.limits import Limits
from services.registry.peers import Peers
from services.registry.records.quotas import check_quota
from services.registry.records.rooms import Wanted
from services.registry.records.slots import parse
from services.registry.resolution import (
    NAMES,
    Resolution,
    check_length,
    check_prompt,
    check_tokens,
    resolve,
)
from services.registry.roster import Known, Roster
from services.registry.schema import OwnerRow
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

    def __init__(self, roster: Roster, peers: Peers, calls: StageCalls, limits: Limits) -> None:
        self._roster = roster
        self._limits = limits
        self._peers = peers
        self._calls = calls

    async def admit(self, spec: jobs_pb2.JobSpec) -> Admitted:
        """The request resolved, or the MeshError that names its field.

        UNAVAILABLE NO_ENCODER if no encoder is READY to count the prompt's tokens; UNKNOWN_POOL if
        the pool or sampler is not there; NO_INSTANCE_FITS if nobody could ever run it.
        """
        check_prompt(spec.prompt)
        instances = await self._roster.read()
        encoders = _encoders(instances)
        if not encoders:
            raise _no_encoder()
        digest = parse(encoders[0].capabilities).checkpoint_digest
        resolution = resolve(spec, _by_stage(_named(instances, spec), digest))
        most = max(
            parse(one).limits.max_prompt_tokens for one in {e.capabilities for e in encoders}
        )
        check_length(spec.prompt, most)
        same = [one for one in encoders if parse(one.capabilities).checkpoint_digest == digest]
        measured = await self._inspect(same, spec.prompt)
        check_tokens(measured.prompt_tokens, measured.max_prompt_tokens or most)
        return Admitted(resolution, measured.prompt_tokens)

    def charge(self, session: Session, owner: OwnerRow, wanted: Wanted) -> None:
        """In the transaction that makes the job: QUOTA_EXCEEDED or QUEUE_FULL if it is too much."""
        check_quota(session, owner, wanted, self._limits)

    async def _inspect(self, encoders: Sequence[Known], prompt: str) -> encoder_pb2.InspectResponse:
        for encoder in encoders:
            try:
                return await self._calls.inspect_prompt(self._peers.peer(encoder.endpoint), prompt)
            except MeshError as error:
                if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                    raise MeshError(error.reason, error.message, field="spec.prompt") from error
                log.warning("encoder_not_reached", asked=encoder.instance_id, reason=error.reason)
        raise _no_encoder()


def _encoders(instances: Sequence[Known]) -> list[Known]:
    """READY encoders; first those whose checkpoint most stages have."""
    stages: dict[str, set[Stage]] = {}
    for stage, capabilities in {(one.stage, one.capabilities) for one in instances}:
        stages.setdefault(parse(capabilities).checkpoint_digest, set()).add(stage)
    ready = [
        one for one in instances if one.stage is Stage.ENCODE and one.state is InstanceState.READY
    ]
    return sorted(ready, key=lambda one: -len(stages[parse(one.capabilities).checkpoint_digest]))


def _named(instances: Sequence[Known], spec: jobs_pb2.JobSpec) -> Sequence[Known]:
    """Without the samplers that the job does not go to; UNKNOWN_POOL if none is left."""
    others = [one for one in instances if one.stage is not Stage.SAMPLE]
    samplers = [one for one in instances if one.stage is Stage.SAMPLE]
    if spec.pool:
        samplers = [one for one in samplers if one.pool == spec.pool]
        if not samplers:
            words = "no sampler is in this pool"
            raise MeshError(Reason.UNKNOWN_POOL, words, field="spec.pool")
    if spec.sampler_id:
        samplers = [one for one in samplers if one.instance_id == spec.sampler_id]
        if not samplers:
            words = "there is no such sampler" + (" in this pool" if spec.pool else "")
            raise MeshError(Reason.UNKNOWN_POOL, words, field="spec.sampler_id")
    return [*others, *samplers]


def _by_stage(
    instances: Sequence[Known], digest: str
) -> Mapping[Stage, list[stage_pb2.Capabilities]]:
    """What the instances with this checkpoint can do, by stage, what is alike once.

    NO_INSTANCE_FITS if all of a stage have another checkpoint.
    """
    by_stage: dict[Stage, list[stage_pb2.Capabilities]] = {}
    for stage, packed in dict.fromkeys((one.stage, one.capabilities) for one in instances):
        capabilities = parse(packed)
        those = by_stage.setdefault(stage, [])
        if capabilities.checkpoint_digest in ("", digest):
            those.append(capabilities)
    for stage, those in by_stage.items():
        if not those:
            words = (
                f"every {NAMES[stage]} that could take this has another checkpoint than the encoder"
            )
            raise MeshError(Reason.NO_INSTANCE_FITS, words)
    return by_stage


def _no_encoder() -> MeshError:
    words = "no encoder is ready to measure the prompt; nothing was queued"
    return MeshError(Reason.NO_ENCODER, words, retry_after_s=_RETRY_S)
