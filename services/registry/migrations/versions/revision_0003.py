"""Burials that are owed, where a job's events begin, heirs of outputs, the age of events."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and indexes."""
    op.add_column(
        "job", sa.Column("first_revision", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column(
        "run", sa.Column("burial_owed", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_index("ix_job_heir_encode", "job", ["inherited_encode"], unique=False)
    op.create_index("ix_job_heir_sample", "job", ["inherited_sample"], unique=False)
    op.create_index("ix_run_burial", "run", ["burial_owed", "instance_id"], unique=False)
    op.create_index("ix_event_age", "event", ["create_time"], unique=False)
