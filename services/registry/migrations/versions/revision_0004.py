"""Turns of owners and jobs, expected times of runs, and indexes that claims walk along."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_LIVE = sa.text("state IN ('BOUND', 'ACCEPTED', 'RUNNING', 'UNKNOWN')")
_EPOCH = "1970-01-01 00:00:00"


def _float(name: str) -> "sa.Column[float]":
    return sa.Column(name, sa.Float(), nullable=False, server_default="0")


def upgrade() -> None:
    """Add the columns and indexes."""
    # Everybody may be in turn: whoever looks first finds out.
    op.add_column(
        "owner", sa.Column("in_turn", sa.Boolean(), nullable=False, server_default=sa.true())
    )
    op.add_column(
        "owner",
        sa.Column(
            "turn_time",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text(f"'{_EPOCH}'"),
        ),
    )
    op.add_column("job", _float("turn_s"))
    op.add_column("job", _float("charged_s"))
    op.add_column("run", _float("expected_s"))
    op.create_index(
        "ix_owner_turn", "owner", ["in_turn", "virtual_time_s", "turn_time", "owner_id"]
    )
    op.drop_index("ix_job_queue", "job")
    op.create_index("ix_job_queue", "job", ["waiting", "stage", "turn_s", "create_time", "job_id"])
    op.create_index(
        "ix_job_turn",
        "job",
        ["owner_id", "stage", "waiting", "priority", "create_time", "job_id"],
    )
    op.create_index("ix_job_lane", "job", ["stage", "waiting", "pool", "sampler_id"])
    op.create_index(
        "ix_run_live", "run", ["instance_id"], sqlite_where=_LIVE, postgresql_where=_LIVE
    )
    op.create_index(
        "ix_instance_fleet",
        "instance",
        ["stage", "state", "drain_requested", "pool", "slots", "unit_time_s", "instance_id"],
    )
