"""The first tables: owners, keys, jobs, runs, instances, artifacts, events, requests."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_LIVE = sa.text("state IN ('BOUND', 'ACCEPTED', 'RUNNING', 'UNKNOWN')")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "instance",
        sa.Column("instance_id", sa.String(length=63), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("endpoint", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(length=40), nullable=False),
        sa.Column("journal_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("capabilities", sa.LargeBinary(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("heartbeat_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("instance_id"),
    )
    op.create_index("ix_instance_stage", "instance", ["stage"], unique=False)
    op.create_table(
        "owner",
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner_id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "api_key",
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("label", sa.String(length=64), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owner.owner_id"],
        ),
        sa.PrimaryKeyConstraint("key_id"),
        sa.UniqueConstraint("secret_sha256"),
    )
    op.create_index("ix_api_key_owner_id", "api_key", ["owner_id"], unique=False)
    op.create_table(
        "job",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=True),
        sa.Column("waiting", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("frames", sa.Integer(), nullable=False),
        sa.Column("seed", sa.String(length=20), nullable=False),
        sa.Column("evaluations", sa.Integer(), nullable=False),
        sa.Column("off_distribution", sa.Boolean(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("checkpoint_digest", sa.String(length=64), nullable=False),
        sa.Column("failure", sa.LargeBinary(), nullable=True),
        sa.Column("artifact_id", sa.String(length=40), nullable=True),
        sa.Column("resumed_from", sa.String(length=40), nullable=True),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("start_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owner.owner_id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_index("ix_job_owner", "job", ["owner_id", "create_time", "job_id"], unique=False)
    op.create_index(
        "ix_job_queue", "job", ["waiting", "stage", "create_time", "job_id"], unique=False
    )
    op.create_table(
        "request",
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owner.owner_id"],
        ),
        sa.PrimaryKeyConstraint("owner_id", "method", "request_id"),
    )
    op.create_index("ix_request_create_time", "request", ["create_time"], unique=False)
    op.create_table(
        "event",
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["job.job_id"],
        ),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owner.owner_id"],
        ),
        sa.PrimaryKeyConstraint("owner_id", "revision"),
    )
    op.create_index("ix_event_job", "event", ["job_id", "revision"], unique=False)
    op.create_table(
        "run",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("instance_id", sa.String(length=63), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("journal_id", sa.String(length=40), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("start_sent", sa.Boolean(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("tombstoned", sa.Boolean(), nullable=False),
        sa.Column("phase", sa.String(length=32), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.LargeBinary(), nullable=True),
        sa.Column("timings", sa.LargeBinary(), nullable=True),
        sa.Column("output_bundle_id", sa.String(length=40), nullable=True),
        sa.Column("output_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("output_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("output_token", sa.String(length=64), nullable=False),
        sa.Column("output_kept", sa.Boolean(), nullable=False),
        sa.Column("bind_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("end_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["instance_id"],
            ["instance.instance_id"],
        ),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["job.job_id"],
        ),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("ix_run_instance", "run", ["instance_id", "state"], unique=False)
    op.create_index("ix_run_job", "run", ["job_id", "bind_time"], unique=False)
    op.create_index(
        "ix_run_output", "run", ["output_kept", "state", "output_bundle_id"], unique=False
    )
    op.create_index(
        "ux_run_live_job",
        "run",
        ["job_id"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_table(
        "artifact",
        sa.Column("artifact_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("block_sums", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["job.job_id"],
        ),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owner.owner_id"],
        ),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["run.run_id"],
        ),
        sa.PrimaryKeyConstraint("artifact_id"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_index(
        "ix_artifact_owner", "artifact", ["owner_id", "create_time", "artifact_id"], unique=False
    )
