"""The tables. Nothing in them that PostgreSQL would not take too.

A change here needs a migration beside it (`migrations/`); a test compares the two.
"""

from datetime import datetime

from sqlalchemy import BigInteger, Column, ForeignKey, Index, LargeBinary, Table, Text, text
from sqlmodel import Field, SQLModel

from services.registry.columns import ByValue, UtcTime, utc_now
from services.registry.lifecycle import RUN_LIVE, InstanceState, JobState, RunState, Stage

LIVE = text("state IN (" + ", ".join(f"'{state}'" for state in RunState if state in RUN_LIVE) + ")")


def table_of(row: type[SQLModel]) -> Table:
    """The table alone, for statements about many rows that need no objects."""
    table: Table = row.__table__  # type: ignore[attr-defined]
    return table


class OwnerRow(SQLModel, table=True):
    """Who may see a job. `revision` numbers the owner's events, in the events' transactions."""

    __tablename__ = "owner"
    __table_args__ = (Index("ix_owner_turn", "in_turn", "virtual_time_s", "turn_time", "owner_id"),)

    owner_id: str = Field(primary_key=True, max_length=40)
    name: str = Field(unique=True, max_length=64)
    admin: bool = False
    revision: int = Field(default=0, sa_type=BigInteger)
    # Events up to this revision are gone.
    compacted_revision: int = Field(default=0, sa_type=BigInteger)
    # Limits; none: the configured ones, -1: no limit.
    max_running: int | None = None
    max_waiting: int | None = None
    weight: float = 1.0
    # Sampler time that it was given, divided by its weight: whoever has least is next.
    virtual_time_s: float = 0.0
    # It may have a job that can be given a turn; cleared by whoever looked and found none.
    in_turn: bool = False
    # When it last began to wait: among equals the first is next.
    turn_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)


class KeyRow(SQLModel, table=True):
    """An API key by its SHA-256: a secret of 256 random bits needs no slow hash."""

    __tablename__ = "api_key"

    key_id: str = Field(primary_key=True, max_length=40)
    owner_id: str = Field(foreign_key="owner.owner_id", index=True, max_length=40)
    label: str = Field(default="", max_length=64)
    secret_sha256: str = Field(unique=True, max_length=64)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)
    revoke_time: datetime | None = Field(default=None, sa_type=UtcTime)


class JobRow(SQLModel, table=True):
    """One video asked for, as it was resolved."""

    __tablename__ = "job"
    __table_args__ = (
        Index("ix_job_queue", "waiting", "stage", "turn_s", "create_time", "job_id"),
        Index("ix_job_turn", "owner_id", "stage", "waiting", "priority", "create_time", "job_id"),
        Index("ix_job_lane", "stage", "waiting", "pool", "sampler_id"),
        Index("ix_job_owner", "owner_id", "create_time", "job_id"),
        Index("ix_job_heir_encode", "inherited_encode"),
        Index("ix_job_heir_sample", "inherited_sample"),
    )

    job_id: str = Field(primary_key=True, max_length=40)
    owner_id: str = Field(foreign_key="owner.owner_id", max_length=40)
    state: JobState = Field(
        default=JobState.QUEUED, sa_column=Column(ByValue(JobState), nullable=False)
    )
    # The stage that is next or under way; none once ended.
    stage: Stage | None = Field(default=Stage.ENCODE, sa_column=Column(ByValue(Stage)))
    # It is in the queue of `stage`: alive, and no run of it is.
    waiting: bool = True
    cancel_requested: bool = False
    revision: int = Field(default=0, sa_type=BigInteger)
    # Of its first event; 0: not known, it is older than this column.
    first_revision: int = Field(default=0, sa_type=BigInteger)

    prompt: str = Field(sa_type=Text)
    mode: str = Field(max_length=16)
    height: int
    width: int
    frames: int
    # All of uint64, which no SQL integer holds.
    seed: str = Field(max_length=20)
    evaluations: int
    off_distribution: bool = False
    prompt_tokens: int = 0
    checkpoint_digest: str = Field(default="", max_length=64)
    priority: int = 0
    # Placement that was asked for; empty: any.
    pool: str = Field(default="", max_length=63)
    sampler_id: str = Field(default="", max_length=63)
    # Its owner's virtual time when it was given its turn: later stages keep this order.
    turn_s: float = 0.0
    # Sampler time that its owner was charged for it and that is not settled yet.
    charged_s: float = 0.0
    automatic_resumes: int = 0
    resumes: int = 0
    # Runs of the resumed job whose outputs this one works on.
    inherited_encode: str | None = Field(default=None, max_length=40)
    inherited_sample: str | None = Field(default=None, max_length=40)

    failure: bytes | None = Field(default=None, sa_type=LargeBinary)
    artifact_id: str | None = Field(default=None, max_length=40)
    resumed_from: str | None = Field(default=None, max_length=40)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)
    start_time: datetime | None = Field(default=None, sa_type=UtcTime)
    end_time: datetime | None = Field(default=None, sa_type=UtcTime)


class RunRow(SQLModel, table=True):
    """One attempt at one stage: the binding, written before any call uses it, and its outcome."""

    __tablename__ = "run"
    __table_args__ = (
        # A job never has two live runs, whatever the code above does.
        Index("ux_run_live_job", "job_id", unique=True, sqlite_where=LIVE, postgresql_where=LIVE),
        Index("ix_run_instance", "instance_id", "state"),
        Index("ix_run_live", "instance_id", sqlite_where=LIVE, postgresql_where=LIVE),
        Index("ix_run_job", "job_id", "bind_time"),
        Index("ix_run_output", "output_kept", "state", "output_bundle_id"),
        Index("ix_run_burial", "burial_owed", "instance_id"),
    )

    run_id: str = Field(primary_key=True, max_length=40)
    job_id: str = Field(foreign_key="job.job_id", max_length=40)
    stage: Stage = Field(sa_column=Column(ByValue(Stage), nullable=False))
    instance_id: str = Field(sa_column=Column(ForeignKey("instance.instance_id"), nullable=False))
    generation: int = Field(sa_type=BigInteger)
    journal_id: str = Field(max_length=40)
    lease_token: str = Field(max_length=64)
    state: RunState = Field(
        default=RunState.BOUND, sa_column=Column(ByValue(RunState), nullable=False)
    )
    # Whoever sets it makes the call: with the binding, or later by compare-and-set.
    start_sent: bool = False
    # Its instance has been heard to have it.
    accepted: bool = False
    # A run that was cut short at the same instance: the sample goes on from its snapshot.
    resume_run_id: str = Field(default="", max_length=40)
    # We asked its instance to bury it, to settle a doubt.
    tombstoned: bool = False
    # It was ruled over without its instance, which has to stop or bury it when it is back.
    burial_owed: bool = False

    phase: str = Field(default="", max_length=32)
    done: int = Field(default=0, sa_type=BigInteger)
    total: int = Field(default=0, sa_type=BigInteger)
    failure: bytes | None = Field(default=None, sa_type=LargeBinary)
    timings: bytes | None = Field(default=None, sa_type=LargeBinary)

    output_bundle_id: str | None = Field(default=None, max_length=40)
    output_size_bytes: int = Field(default=0, sa_type=BigInteger)
    output_sha256: bytes | None = Field(default=None, sa_type=LargeBinary)
    output_token: str = Field(default="", max_length=64)
    # Its instance still holds it for whoever may need it. Once it does not, an id that is left in
    # `output_bundle_id` is of a bundle that has yet to be deleted there.
    output_kept: bool = False
    # The registry's own copy of it.
    copy_bundle_id: str | None = Field(default=None, max_length=40)
    copy_token: str = Field(default="", max_length=64)

    # Capabilities and version of its instance when it was bound, for the receipt.
    capabilities: bytes | None = Field(default=None, sa_type=LargeBinary)
    version: str = Field(default="", max_length=64)
    # The registry that follows it.
    replica_id: str = Field(default="", max_length=40)
    # How long it was expected to hold its slot when it was bound.
    expected_s: float = 0.0
    bind_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)
    end_time: datetime | None = Field(default=None, sa_type=UtcTime)


class InstanceRow(SQLModel, table=True):
    """One stage service and its latest process start. Slots in use are counted from the runs."""

    __tablename__ = "instance"
    __table_args__ = (
        # All that placing asks of many instances at once, without reading their rows.
        Index(
            "ix_instance_fleet",
            "stage",
            "state",
            "drain_requested",
            "pool",
            "slots",
            "unit_time_s",
            "instance_id",
        ),
    )

    instance_id: str = Field(primary_key=True, max_length=63)
    stage: Stage = Field(sa_column=Column(ByValue(Stage), nullable=False, index=True))
    endpoint: str = Field(max_length=255)
    generation: int = Field(sa_type=BigInteger)
    boot_id: str = Field(max_length=40)
    journal_id: str = Field(max_length=40)
    state: InstanceState = Field(
        default=InstanceState.READY, sa_column=Column(ByValue(InstanceState), nullable=False)
    )
    slots: int = 1
    # The Capabilities message as it was registered.
    capabilities: bytes = Field(sa_type=LargeBinary)
    version: str = Field(default="", max_length=64)
    pool: str = Field(default="default", max_length=63)
    drain_requested: bool = False
    # Measured: seconds for one unit of work of its stage, smoothed; none before the first run.
    unit_time_s: float | None = None
    heartbeat_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)


class ArtifactRow(SQLModel, table=True):
    """A bundle that an owner can see. Its file is named by its id alone."""

    __tablename__ = "artifact"
    __table_args__ = (Index("ix_artifact_owner", "owner_id", "create_time", "artifact_id"),)

    artifact_id: str = Field(primary_key=True, max_length=40)
    owner_id: str = Field(foreign_key="owner.owner_id", max_length=40)
    job_id: str = Field(foreign_key="job.job_id", max_length=40)
    run_id: str = Field(foreign_key="run.run_id", unique=True, max_length=40)
    # The Manifest message.
    manifest: bytes = Field(sa_type=LargeBinary)
    size_bytes: int = Field(sa_type=BigInteger)
    sha256: bytes = Field(sa_type=LargeBinary)
    # CRC-32C of every MiB, four bytes each: tells damage on our disk from damage on the way.
    block_sums: bytes = Field(sa_type=LargeBinary)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)


class EventRow(SQLModel, table=True):
    """A job after a change. `body` is the Job message without its prompt, which never changes."""

    __tablename__ = "event"
    __table_args__ = (
        Index("ix_event_job", "job_id", "revision"),
        Index("ix_event_age", "create_time"),
    )

    owner_id: str = Field(primary_key=True, foreign_key="owner.owner_id", max_length=40)
    revision: int = Field(primary_key=True, sa_type=BigInteger)
    job_id: str = Field(foreign_key="job.job_id", max_length=40)
    body: bytes = Field(sa_type=LargeBinary)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)


class RequestRow(SQLModel, table=True):
    """The first answer to a creating call, without secrets, kept for its repeats."""

    __tablename__ = "request"

    owner_id: str = Field(primary_key=True, foreign_key="owner.owner_id", max_length=40)
    method: str = Field(primary_key=True, max_length=32)
    request_id: str = Field(primary_key=True, max_length=64)
    body_sha256: str = Field(max_length=64)
    answer: bytes = Field(sa_type=LargeBinary)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime, index=True)


class ReplicaRow(SQLModel, table=True):
    """A registry process: whoever is not heard by the database's clock has its runs taken over."""

    __tablename__ = "replica"

    replica_id: str = Field(primary_key=True, max_length=40)
    heartbeat_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)


class RulingRow(SQLModel, table=True):
    """What an operator decided: who, when, about what, and why."""

    __tablename__ = "ruling"

    ruling_id: str = Field(primary_key=True, max_length=40)
    owner_id: str = Field(foreign_key="owner.owner_id", max_length=40)
    # "REMOVE", "DRAIN", or a verdict.
    action: str = Field(max_length=32)
    # An instance or a run.
    target: str = Field(index=True, max_length=63)
    note: str = Field(default="", max_length=500)
    create_time: datetime = Field(default_factory=utc_now, sa_type=UtcTime)
