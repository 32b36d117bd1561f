"""The run whose snapshot a sample goes on from."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column(
        "run",
        sa.Column("resume_run_id", sa.String(length=40), nullable=False, server_default=""),
    )
