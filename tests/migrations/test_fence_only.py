"""advance_fence alone, for a second database whose writes are to be fenced."""

from __future__ import annotations

import psycopg
import pytest

from sokka_pg import migrate
from sokka_pg.errors import SchemaMismatch


@pytest.mark.parametrize("schema", ["sokka", "fences"])
def test_a_fence_alone_refuses_a_lower_token(empty_db: str, schema: str) -> None:
    assert migrate.fence_only(empty_db, schema)
    advance = f"select token from {schema}.advance_fence('s3://bucket/key', %s)"
    with psycopg.connect(empty_db, autocommit=True) as connection:
        assert connection.execute(advance, (10,)).fetchone() == (10,)
        assert connection.execute(advance, (10,)).fetchone() == (10,)
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(advance, (9,))
    assert caught.value.sqlstate == "SK011"


def test_installing_it_again_keeps_what_it_remembers(empty_db: str) -> None:
    assert migrate.fence_only(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute("select sokka.advance_fence('a', 5)")
        assert not migrate.fence_only(empty_db)
        with pytest.raises(psycopg.Error):
            connection.execute("select sokka.advance_fence('a', 4)")


def test_a_whole_queue_has_its_fence_already(db: str) -> None:
    assert not migrate.fence_only(db)
    assert migrate.check(db).ok


def test_a_fence_alone_brings_no_queue(empty_db: str) -> None:
    migrate.fence_only(empty_db)
    assert migrate.current(empty_db) is None
    with psycopg.connect(empty_db) as connection:
        assert connection.execute("select to_regclass('sokka.tasks')").fetchone() == (None,)
    with pytest.raises(SchemaMismatch, match="choose another schema"):
        migrate.upgrade(empty_db)
