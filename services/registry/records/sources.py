"""Where the output is that a stage works on: at the instance that made it, or in our own copy.

A job works on what its own runs made, or on what a run of the job that it resumes made.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlmodel import Session, col, select

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import Reason
from services.registry.lifecycle import InstanceState, RunState, Stage
from services.registry.schema import InstanceRow, JobRow, RunRow

_PRODUCERS = {Stage.SAMPLE: Stage.ENCODE, Stage.DECODE: Stage.SAMPLE}
# What a consumer says of an input that is not there.
_MISSING = (Reason.BUNDLE_NOT_FOUND, Reason.BUNDLE_CORRUPT)
# How a reference to our own copy names us: no instance can be called so.
REGISTRY = "@registry"


@dataclass(frozen=True)
class Source:
    """The run whose output a stage needs, and where it is now."""

    run: RunRow
    # Its instance; a copy alone is read if the instance cannot give it.
    endpoint: str
    held: bool
    # Made by the job itself, not inherited.
    own: bool

    @property
    def copied(self) -> bool:
        """Whether the registry has it."""
        return bool(self.run.copy_bundle_id)

    @property
    def exists(self) -> bool:
        """Whether anybody has it. A holder may be away for a while."""
        return self.held or self.copied

    def readable(self, reachable: Collection[str]) -> bool:
        """Whether it can be pulled now, if these instances can be reached."""
        return self.copied or (self.held and self.run.instance_id in reachable)

    def ref(self, reachable: bool, registry: str) -> transfer_pb2.BundleRef:
        """The bundle, for its consumer. `reachable`: its instance; `registry`: our own endpoint.

        What is inherited is read from the copy: its instance may delete it at any time then.
        """
        run = self.run
        ref = transfer_pb2.BundleRef(
            instance_id=run.instance_id,
            endpoint=self.endpoint,
            bundle_id=run.output_bundle_id or "",
            size_bytes=run.output_size_bytes,
            sha256=run.output_sha256 or b"",
            read_token=run.output_token,
        )
        if self.copied and not (self.own and self.held and reachable):
            ref.instance_id, ref.endpoint = REGISTRY, registry
            ref.bundle_id, ref.read_token = run.copy_bundle_id or "", run.copy_token
        return ref


def find_source(session: Session, job_id: str, stage: Stage) -> Source | None:
    """The output that `stage` of the job needs; None for the first stage, or if none was made.

    The newest that is somewhere, or the newest of all if none is.
    """
    producer = _PRODUCERS.get(stage)
    if producer is None:
        return None
    runs = find_outputs(session, session.get_one(JobRow, job_id), producer)
    sources = [locate(session, run, own=run.job_id == job_id) for run in runs]
    return next((one for one in sources if one.exists), sources[0] if sources else None)


def locate(session: Session, run: RunRow, *, own: bool = True) -> Source:
    """Where the run's output is.

    It is not at an instance that was removed, nor at one that lost its disk: bundles lie beside
    the journal.
    """
    instance = session.get_one(InstanceRow, run.instance_id)
    held = (
        run.output_kept
        and instance.state is not InstanceState.GONE
        and instance.journal_id == run.journal_id
    )
    return Source(run, instance.endpoint, held, own)


def find_outputs(session: Session, job: JobRow, stage: Stage) -> list[RunRow]:
    """The runs whose output of `stage` the job has: its own, newest first, then what it inherited.

    Wherever the outputs are now.
    """
    query = select(RunRow).where(
        col(RunRow.job_id) == job.job_id,
        col(RunRow.stage) == stage,
        col(RunRow.state) == RunState.SUCCEEDED,
    )
    runs = list(session.exec(query.order_by(col(RunRow.bind_time).desc())))
    inherited = {Stage.ENCODE: job.inherited_encode, Stage.SAMPLE: job.inherited_sample}.get(stage)
    if inherited and (run := session.get(RunRow, inherited)):
        runs.append(run)
    return runs


def missing_from(session: Session, job: JobRow) -> Stage:
    """The first stage whose output is needed and nowhere: where the job has to go on from."""
    for stage in (Stage.DECODE, Stage.SAMPLE):
        source = find_source(session, job.job_id, stage)
        if source is not None and source.exists:
            return stage
    return Stage.ENCODE


def forget_input(session: Session, job: JobRow, run: RunRow, reason: str) -> None:
    """A run failed for `reason`: if its input was not there, it has to be made again."""
    source = find_source(session, job.job_id, run.stage)
    if source is not None and reason in _MISSING:
        # The copy is checked against our own disk, so it is the instance that has lost it.
        source.run.output_kept = False
        session.add(source.run)
