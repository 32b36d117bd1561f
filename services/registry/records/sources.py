"""Where the output is that a stage works on: at the instance that made it, or in our own copy.

A job works on what its own runs made, or on what a run of the job that it resumes made.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, or_
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import Reason
from services.registry.lifecycle import InstanceState, RunState, Stage
from services.registry.schema import InstanceRow, JobRow, RunRow, table_of

_PRODUCERS = {Stage.SAMPLE: Stage.ENCODE, Stage.DECODE: Stage.SAMPLE}
# What a consumer says of an input that is not there.
_MISSING = (Reason.BUNDLE_NOT_FOUND, Reason.BUNDLE_CORRUPT)
# How a reference to our own copy names us: no instance can be called so.
REGISTRY = "@registry"


_RUNS, _INSTANCES = table_of(RunRow), table_of(InstanceRow)
_MADE = (
    _RUNS.c.job_id.in_(bindparam("job_ids", expanding=True))
    & (_RUNS.c.stage == bindparam("stage"))
    & (_RUNS.c.state == RunState.SUCCEEDED)
)


def _outputs(condition: ColumnElement[bool]) -> Select[Any]:
    return (
        select_columns(
            _RUNS.c.run_id,
            _RUNS.c.job_id,
            _RUNS.c.stage,
            _RUNS.c.instance_id,
            _RUNS.c.journal_id,
            _RUNS.c.output_kept,
            _RUNS.c.copy_bundle_id,
            _INSTANCES.c.state,
            _INSTANCES.c.journal_id.label("instance_journal_id"),
        )
        .join(_INSTANCES, _INSTANCES.c.instance_id == _RUNS.c.instance_id)
        .where(condition)
        .order_by(_RUNS.c.bind_time.desc())
    )


# Built once: building one takes longer than SQLite does.
_OUTPUTS = _outputs(_MADE)
_OUTPUTS_OR_INHERITED = _outputs(
    or_(_MADE, _RUNS.c.run_id.in_(bindparam("inherited", expanding=True)))
)

_MADE_BY = (
    select(RunRow)
    .where(
        col(RunRow.job_id) == bindparam("job_id"),
        col(RunRow.stage) == bindparam("stage"),
        col(RunRow.state) == RunState.SUCCEEDED,
    )
    .order_by(col(RunRow.bind_time).desc())
)


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


def readable_inputs(
    session: Session, jobs: Sequence[JobRow], stage: Stage, reachable: Collection[str]
) -> set[str]:
    """Ids of those of the jobs whose input for `stage` can be pulled now.

    As `find_source` for each and `Source.readable`, for many jobs at once.
    """
    if not jobs:
        return set()
    producer = _PRODUCERS[stage]
    heirs: dict[str, list[str]] = {}
    for job in jobs:
        if inherited := _inherited(job, producer):
            heirs.setdefault(inherited, []).append(job.job_id)
    query = _OUTPUTS_OR_INHERITED if heirs else _OUTPUTS
    values = {"job_ids": [job.job_id for job in jobs], "stage": producer}
    rows = session.execute(query, {**values, "inherited": list(heirs)} if heirs else values).all()
    wanted = set(values["job_ids"])
    # A job's own runs come first, so that an inherited one counts only where none of them does.
    made = [(row.job_id, row) for row in rows if row.job_id in wanted and row.stage is producer]
    made += [(job_id, row) for row in rows for job_id in heirs.get(row.run_id, ())]
    decided: dict[str, bool] = {}
    for job_id, row in made:
        held = _is_held(row.output_kept, row.journal_id, row.state, row.instance_journal_id)
        if job_id not in decided and (held or row.copy_bundle_id):
            near = held and row.instance_id in reachable
            decided[job_id] = bool(row.copy_bundle_id) or near
    return {job_id for job_id, readable in decided.items() if readable}


def locate(session: Session, run: RunRow, *, own: bool = True) -> Source:
    """Where the run's output is.

    It is not at an instance that was removed, nor at one that lost its disk: bundles lie beside
    the journal.
    """
    instance = session.get_one(InstanceRow, run.instance_id)
    held = _is_held(run.output_kept, run.journal_id, instance.state, instance.journal_id)
    return Source(run, instance.endpoint, held, own)


def _is_held(
    kept: bool, journal_id: str, instance_state: InstanceState, instance_journal_id: str
) -> bool:
    gone = instance_state is InstanceState.GONE
    return kept and not gone and instance_journal_id == journal_id


def find_outputs(session: Session, job: JobRow, stage: Stage) -> list[RunRow]:
    """The runs whose output of `stage` the job has: its own, newest first, then what it inherited.

    Wherever the outputs are now.
    """
    runs = list(session.exec(_MADE_BY, params={"job_id": job.job_id, "stage": stage}))
    inherited = _inherited(job, stage)
    if inherited and (run := session.get(RunRow, inherited)):
        runs.append(run)
    return runs


def _inherited(job: JobRow, stage: Stage) -> str | None:
    return {Stage.ENCODE: job.inherited_encode, Stage.SAMPLE: job.inherited_sample}.get(stage)


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
