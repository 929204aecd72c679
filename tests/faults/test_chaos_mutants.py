"""The run of real processes can fail: it finds defects that were put in on purpose."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import psycopg
import pytest

from sokka_pg import schema
from tests import servers
from tests.faults.chaos import catching
from tests.faults.chaos.mutants import MUTANTS, apply_sql
from tests.faults.chaos.plan import SHAPES
from tests.faults.chaos.scene import binaries_of
from tests.faults.processes import ROOT

QUICK = ("worker-clock",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in MUTANTS],
)
def test_a_defect_is_found(name: str, server: servers.Server) -> None:
    caught = asyncio.run(catching.catch(name, binaries_of(server.major)))
    assert caught.seed is not None, caught.verdict.lines()
    assert caught.verdict.verdict == "FAIL"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_can_still_be_put_in(name: str, db: str) -> None:
    mutant = MUTANTS[name]
    assert set(mutant.faults) <= set(SHAPES[mutant.act].faults)
    assert mutant.sql or mutant.setting or mutant.client
    with psycopg.connect(db, autocommit=True) as connection:
        before = _bodies(connection)
        apply_sql(connection, name, mutant.where)
        changed = _bodies(connection) != before
    assert changed == bool(mutant.sql)


def _bodies(connection: psycopg.Connection) -> list[tuple[object, ...]]:
    return connection.execute(
        "select oid, prosrc, proacl::text from pg_proc"
        " where pronamespace = 'sokka'::regnamespace order by oid"
    ).fetchall()


def test_a_defect_of_one_database_leaves_the_other_alone(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as connection:
        before = _bodies(connection)
        apply_sql(connection, "low-fence")
        apply_sql(connection, "any-token", "effects")
        apply_sql(connection, "")
        assert _bodies(connection) == before


@pytest.mark.parametrize("name", [name for name, each in MUTANTS.items() if each.client])
def test_a_defect_of_the_client_is_put_into_one_process(name: str) -> None:
    code = (
        "from tests.faults.chaos import mutants; from sokka_pg.calls.repeating import Tries;"
        "from sokka_pg.store import PgTaskStore; from sokka_pg.worker.link import Link;"
        "from psycopg import AsyncConnection;"
        "look = lambda: (Tries._may_repeat, PgTaskStore._run, Link._connected,"
        " AsyncConnection.connect);"
        f"before = look(); mutants.apply(''); assert look() == before; mutants.apply({name!r});"
        "assert sum(a != b for a, b in zip(before, look())) == 1"
    )
    environment = {**os.environ, "SOKKA_CHAOS_NAME": "w1"}
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, timeout=60
    )


def test_the_defects_of_the_sql_are_in_files_of_the_schema() -> None:
    listed = {path.relative_to(schema.sql_root()).as_posix()
              for path in schema.manifest(schema.sql_root())}  # fmt: skip
    assert {change.file for each in MUTANTS.values() for change in each.sql} <= listed
