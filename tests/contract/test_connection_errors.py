"""What is said when a connection cannot be made, and what is never said."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument, DatabaseUnavailable
from sokka_pg.store import PgTaskStore

SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/x",
        f"postgresql://u:{SECRET}@127.0.0.1:port/x",
        f"postgresql://u:{SECRET}@127.0.0.1/x?no_such_option=1",
        f"password={SECRET} host",
        f"password='{SECRET}",
        f"mysql://u:{SECRET}@127.0.0.1/x",
    ],
)
def test_no_error_about_a_connection_string_shows_its_password(url: str) -> None:
    try:
        PgTaskStore(url).create_task("t")
    except (BadArgument, DatabaseUnavailable) as error:
        assert SECRET not in "".join(traceback.format_exception(error))
        assert SECRET not in repr(error.detail)
    else:
        pytest.fail("it connected")


def test_a_wrong_database_is_said_at_once_in_the_servers_words(db: str) -> None:
    with PgTaskStore(make_conninfo(db, dbname="no_such_database")) as store:
        with pytest.raises(DatabaseUnavailable, match="no_such_database") as refused:
            store.create_task("t")
        assert refused.value.detail["sent"] is False


@pytest.mark.parametrize(
    "options",
    [{"max_size": 0}, {"max_size": True}, {"wait": timedelta(0)}, {"idle_in_transaction": "x"}],
)
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        ConnectionOptions(**options)
