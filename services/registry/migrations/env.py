"""What Alembic runs: the migrations, on the connection that migration.py hands over."""

from alembic import context
from sqlmodel import SQLModel

import services.registry.schema  # noqa: F401 - fills the metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    # SQLite cannot alter most of a table: later migrations rebuild it.
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
