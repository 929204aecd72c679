"""advance_fence: a resource remembers the highest token that wrote to it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from sokka_pg import schema
from tests.races.ordering import Session
from tests.sql.calling import Queue


@pytest.fixture(params=["queue", "fence alone"])
def fences(request: pytest.FixtureRequest, empty_db: str) -> Iterator[Queue]:
    """The function in a database with a queue, and in one without."""
    with psycopg.connect(empty_db, autocommit=True) as connection:
        listing = schema.WHOLE if request.param == "queue" else schema.FENCE
        schema.load(connection, "sokka", listing)
        yield Queue(connection)

def test_a_token_may_rise_and_repeat_but_not_fall(fences: Queue) -> None:
    for token in (0, 5, 5, 6, 2**53, 2**63 - 1):
        assert vars(fences.one("advance_fence", resource="r", token=token)) == {
            "resource": "r", "token": token,
        }  # fmt: skip
    found = fences.refused("advance_fence", resource="r", token=6)
    assert found.sqlstate == "SK011"
    assert found.detail == {
        "resource": "r", "token": 2**63 - 1, "expected": {"token": 6},
    }  # fmt: skip
    assert fences.value("select token from sokka.fences where resource = 'r'") == 2**63 - 1

def test_resources_are_apart_and_compared_byte_by_byte(fences: Queue) -> None:
    fences.one("advance_fence", resource="file", token=9)
    for name in ("File", "file ", "fil\u00e9", "file\u0301", "x" * 1000):
        assert fences.one("advance_fence", resource=name, token=1).token == 1

@pytest.mark.parametrize(
    ("argument", "value"),
    [("resource", None), ("resource", ""), ("resource", "x" * 1001), ("token", None),
     ("token", -1)],
)  # fmt: skip
def test_a_wrong_argument_is_refused_by_name(fences: Queue, argument: str, value: object) -> None:
    found = fences.refused("advance_fence", **({"resource": "r", "token": 1} | {argument: value}))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", argument)
    assert fences.value("select count(*) from sokka.fences") == 0

def test_what_rolls_back_was_never_seen(fences: Queue) -> None:
    with fences.connection.transaction(force_rollback=True):
        fences.one("advance_fence", resource="r", token=9)
    assert fences.one("advance_fence", resource="r", token=1).token == 1

@pytest.mark.parametrize(("committed", "outcome"), [(True, "SK011"), (False, None)])
def test_a_ghost_waits_for_the_newer_writer_and_is_refused(
    fences: Queue, committed: bool, outcome: str | None
) -> None:
    url = fences.connection.info.dsn
    newer = Session(psycopg.connect(url), fences)
    ghost = Session(psycopg.connect(url, autocommit=True), fences)
    newer.one("advance_fence", resource="r", token=9)
    call = ghost.begin("advance_fence", resource="r", token=8)
    ghost.blocked_by(newer)
    newer.commit() if committed else newer.rollback()
    found = call.result(timeout=20)
    assert getattr(found, "sqlstate", None) == outcome
    ghost.close()
    newer.close()

def test_a_fence_alone_brings_nothing_else(empty_db: str) -> None:
    with psycopg.connect(empty_db, autocommit=True) as connection:
        schema.load(connection, "guardian", schema.FENCE)
        names = connection.execute(
            "select relname::text from pg_class where relnamespace = 'guardian'::regnamespace"
            " and relkind <> 'i' union select proname::text from pg_proc"
            " where pronamespace = 'guardian'::regnamespace order by 1"
        ).fetchall()
        assert [name for (name,) in names] == ["advance_fence", "fences", "refuse"]
        row = connection.execute("select * from guardian.advance_fence('r', 3)").fetchone()
        assert row == ("r", 3)
