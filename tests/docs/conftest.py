"""Fixtures of the documentation's tests."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.docs.reading import Reader, psql_folder
from tests.servers import Server


@pytest.fixture
def psql() -> Callable[..., None]:
    """Runs psql on a database; its error text fails the test."""

    def run(url: str, *arguments: str) -> None:
        program = str(psql_folder() / "psql")
        command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments, url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def make_role(server: Server) -> Iterator[Callable[[str], str]]:
    """Makes roles of the cluster with names of their own, gone after the test."""
    made: list[str] = []

    def make(job: str) -> str:
        made.append(f"sokka_{job}_{uuid.uuid4().hex[:12]}")
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"create role {made[-1]}")
        return made[-1]

    yield make
    drop_roles(server, made)


def drop_roles(server: Server, names: list[str]) -> None:
    """Drop roles of which no database of the test is left."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        for name in names:
            connection.execute(f"drop owned by {name}")
            connection.execute(f"drop role {name}")


def roles_of(server: Server, ending: str) -> list[str]:
    """The roles that a page made: their names end so."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        found = connection.execute(
            "select rolname from pg_roles where rolname like %s", (f"%{ending}",)
        ).fetchall()
    return [name for (name,) in found]


@pytest.fixture
def reader(
    server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[bool], Reader]]:
    """Makes the reader of a page: on a database with the schema, or an empty one."""
    databases: list[str] = []
    readers: list[Reader] = []

    def database(template: str) -> str:
        databases.append(server.create(template))
        return server.url(databases[-1])

    def make(installed: bool) -> Reader:
        shop = database(server.template() if installed else "template0")
        folder = tmp_path / "a shop"
        folder.mkdir()
        readers.append(Reader(folder, shop, database("template0")))
        return readers[-1]

    yield make
    for name in databases:
        server.drop(name)
    drop_roles(server, [name for one in readers for name in roles_of(server, one.ending)])
