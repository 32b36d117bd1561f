"""Quotas, placement, resumes, copies of outputs, replicas, and what operators decided."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _integer(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.Integer(), nullable=False, server_default="0")


def _text(name: str, length: int, default: str = "") -> "sa.Column[str]":
    return sa.Column(name, sa.String(length=length), nullable=False, server_default=default)


def _optional_text(name: str, length: int) -> "sa.Column[str]":
    return sa.Column(name, sa.String(length=length), nullable=True)


def upgrade() -> None:
    """Add the columns and tables."""
    for column in (
        sa.Column("compacted_revision", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("max_waiting", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Float(), nullable=False, server_default="1"),
        sa.Column("virtual_time_s", sa.Float(), nullable=False, server_default="0"),
    ):
        op.add_column("owner", column)
    op.add_column("api_key", sa.Column("revoke_time", sa.DateTime(timezone=True), nullable=True))
    for job_column in (
        _integer("priority"),
        _text("pool", 63),
        _text("sampler_id", 63),
        _integer("automatic_resumes"),
        _integer("resumes"),
        _optional_text("inherited_encode", 40),
        _optional_text("inherited_sample", 40),
    ):
        op.add_column("job", job_column)
    for run_column in (
        _optional_text("copy_bundle_id", 40),
        _text("copy_token", 64),
        sa.Column("capabilities", sa.LargeBinary(), nullable=True),
        _text("version", 64),
        _text("replica_id", 40),
    ):
        op.add_column("run", run_column)
    for instance_column in (
        _text("pool", 63, "default"),
        sa.Column("drain_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("unit_time_s", sa.Float(), nullable=True),
    ):
        op.add_column("instance", instance_column)
    op.create_table(
        "replica",
        sa.Column("replica_id", sa.String(length=40), nullable=False),
        sa.Column("heartbeat_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("replica_id"),
    )
    op.create_table(
        "ruling",
        sa.Column("ruling_id", sa.String(length=40), nullable=False),
        sa.Column("owner_id", sa.String(length=40), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("target", sa.String(length=63), nullable=False),
        sa.Column("note", sa.String(length=500), nullable=False),
        sa.Column("create_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.owner_id"]),
        sa.PrimaryKeyConstraint("ruling_id"),
    )
    op.create_index("ix_ruling_target", "ruling", ["target"], unique=False)
