"""alembic's entry. Runs come from sokka_pg.migrate, which takes the locks first."""

from typing import Any

import sqlalchemy as sa
from alembic import context

from sokka_pg.catalogue import VERSION_TABLE
from sokka_pg.errors import UsageError
from sokka_pg.migrate import hosting, scripts

SCHEMA = hosting.schema_of(context.config)


def configure(**where: Any) -> None:
    context.configure(version_table=VERSION_TABLE, version_table_schema=SCHEMA, **where)


def offline() -> None:
    configure(dialect_name="postgresql")
    start = context.config.attributes.get("sokka_start", "base")
    with context.begin_transaction():
        for text in scripts.preamble(SCHEMA, start):
            context.static_output(text)
        context.run_migrations()
        if context.get_revision_argument() is None:
            context.static_output(scripts.closing(SCHEMA))


def online(connection: sa.Connection) -> None:
    configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    offline()
elif (given := context.config.attributes.get("connection")) is not None:
    online(given)
else:
    raise UsageError("alembic alone takes no locks and knows no schema: use sokka migrate")
