"""Errors of every driver become ours by their SQLSTATE."""

from __future__ import annotations

import pickle
from typing import Any

import psycopg
import pytest
from psycopg_pool import PoolTimeout
from sqlalchemy.exc import DBAPIError, OperationalError

from sokka_pg import errors
from sokka_pg.translate import from_driver, translated

DETAIL = '{"task_id": "t", "status": "running", "expected": {"pid": "w"}}'


class DictError(Exception):
    """As pg8000 raises: one dict of protocol fields."""

    def __init__(self, state: str) -> None:
        super().__init__({"C": state, "M": "told", "D": DETAIL})


class PgcodeError(Exception):
    """As psycopg2 raises: pgcode and diag."""

    def __init__(self, state: str) -> None:
        super().__init__("told")
        self.pgcode = state
        self.diag = type("Diag", (), {"message_primary": "told", "message_detail": DETAIL})


class CausedError(Exception):
    """As asyncpg raises under SQLAlchemy: sqlstate here, detail in the cause."""

    def __init__(self, state: str) -> None:
        super().__init__("<class 'Odd'>: told")
        self.sqlstate = state
        self.__cause__ = Exception("told")
        self.__cause__.detail = DETAIL  # type: ignore[attr-defined]
        self.__cause__.message = "told"  # type: ignore[attr-defined]


@pytest.mark.parametrize("driver", [DictError, PgcodeError, CausedError])
@pytest.mark.parametrize("state", sorted(errors.BY_SQLSTATE))
def test_a_refusal_keeps_class_message_and_detail_through_any_driver(
    driver: Any, state: str
) -> None:
    found = from_driver(DBAPIError("select", {}, driver(state)))
    assert type(found) is errors.BY_SQLSTATE[state]
    assert found.message == "told"
    assert found.detail["expected"] == {"pid": "w"}
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), again.message, again.detail) == (type(found), "told", found.detail)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("57P01", errors.DatabaseUnavailable),
        ("57P03", errors.DatabaseUnavailable),
        ("08006", errors.DatabaseUnavailable),
        ("25006", errors.DatabaseUnavailable),
        ("53300", errors.DatabaseUnavailable),
        ("40001", errors.TransactionConflict),
        ("40P01", errors.TransactionConflict),
        ("42883", errors.SchemaMismatch),
        ("3F000", errors.SchemaMismatch),
        ("57014", errors.UnexpectedDatabaseError),
        ("42501", errors.UnexpectedDatabaseError),
    ],
)
def test_other_states_are_sorted_by_what_a_caller_can_do(state: str, expected: type) -> None:
    found = from_driver(DBAPIError("select", {}, DictError(state)))
    assert type(found) is expected
    assert found.detail["sqlstate"] == state


def test_a_connection_that_broke_leaves_the_answer_open() -> None:
    for error in (
        psycopg.OperationalError("server closed the connection unexpectedly"),
        psycopg.InterfaceError("the connection is closed"),
        OperationalError("s", {}, Exception("gone"), connection_invalidated=True),
    ):
        found = from_driver(error)
        assert type(found) is errors.DatabaseUnavailable
        assert found.detail["sent"] is True
    found = from_driver(PoolTimeout("in vain"))
    assert type(found) is errors.DatabaseUnavailable
    assert found.detail["sent"] is False


def test_what_is_no_database_error_passes_as_it_is() -> None:
    assert from_driver(ValueError("mine")) is None
    with pytest.raises(ZeroDivisionError), translated():
        raise ZeroDivisionError
    with pytest.raises(errors.StaleToken), translated():
        raise errors.StaleToken("ours already")


def test_prose_where_json_was_expected_is_kept_as_it_is() -> None:
    error = PgcodeError("55P03")
    error.diag.message_detail = "Process 1 waits for ShareLock"  # type: ignore[attr-defined]
    found = from_driver(DBAPIError("select", {}, error))
    assert type(found) is errors.Busy
    assert found.detail == {"server_detail": "Process 1 waits for ShareLock"}
    error.diag.message_detail = None  # type: ignore[attr-defined]
    found = from_driver(DBAPIError("select", {}, error))
    assert found is not None
    assert found.detail == {}
