"""alembic's entry: our own runs (sokka_pg.migrate), and `alembic` in a checkout.

    alembic -x sokka_schema=jobs current

takes the database from the same settings as every other command.
"""

from typing import Any

import sqlalchemy as sa
from alembic import context

from sokka_pg import settings
from sokka_pg.catalogue import VERSION_TABLE
from sokka_pg.errors import UsageError
from sokka_pg.migrate import hosting, runs, scripts

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


def by_hand() -> None:
    target = settings.lookup()
    if target is None:
        raise UsageError("no database named: set SOKKA_DATABASE_URL")
    with runs.engine(target.conninfo).begin() as connection:
        online(connection)


if context.is_offline_mode():
    offline()
elif (given := context.config.attributes.get("connection")) is not None:
    online(given)
else:
    by_hand()
