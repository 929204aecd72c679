"""Who may do what right after a migration: the owner, and nobody else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg import migrate
from sokka_pg.errors import UnexpectedDatabaseError
from tests.servers import Server

PUBLIC_GRANTS = """
    select 'schema', nspname::text from pg_namespace n, aclexplode(nspacl) a
    where n.nspname = %(schema)s and a.grantee = 0
    union all
    select 'relation', relname::text
    from pg_class c, aclexplode(coalesce(relacl, acldefault(case relkind when 'S' then 's'
                                else 'r' end::"char", relowner))) a
    where relnamespace = %(schema)s::regnamespace and a.grantee = 0
    union all
    select 'column', attname::text
    from pg_attribute t join pg_class c on c.oid = t.attrelid, aclexplode(attacl) a
    where relnamespace = %(schema)s::regnamespace and a.grantee = 0
    union all
    select 'function', p.oid::regprocedure::text
    from pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner))) a
    where pronamespace = %(schema)s::regnamespace and a.grantee = 0
    union all
    select 'type', typname::text
    from pg_type t, aclexplode(coalesce(typacl, acldefault('T', typowner))) a
    where typnamespace = %(schema)s::regnamespace and a.grantee = 0
      and typtype <> 'm' and typelem = 0
"""


@pytest.fixture
def role(server: Server, empty_db: str) -> Iterator[str]:
    """An ordinary role of the cluster, gone after the test."""
    name = f"sokka_role_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(f"create role {name} login")
        yield name
        connection.execute(f"drop owned by {name} cascade")
        connection.execute(f"drop role {name}")


@pytest.mark.parametrize("schema", ["sokka", "jobs"])
def test_public_gets_nothing(empty_db: str, schema: str) -> None:
    migrate.upgrade(empty_db, schema)
    with psycopg.connect(empty_db) as connection:
        found = connection.execute(PUBLIC_GRANTS, {"schema": schema}).fetchall()
    assert found == []


def test_public_gets_nothing_from_a_fence_alone(empty_db: str) -> None:
    migrate.fence_only(empty_db, "fences")
    with psycopg.connect(empty_db) as connection:
        assert connection.execute(PUBLIC_GRANTS, {"schema": "fences"}).fetchall() == []


def test_a_migration_makes_no_roles(empty_db: str) -> None:
    roles = "select rolname from pg_roles where rolname !~ '^sokka_role_' order by 1"
    with psycopg.connect(empty_db, autocommit=True) as connection:
        before = connection.execute(roles).fetchall()
        migrate.upgrade(empty_db)
        assert connection.execute(roles).fetchall() == before


def test_a_role_without_grants_can_call_and_read_nothing(empty_db: str, role: str) -> None:
    migrate.upgrade(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(f"set role {role}")
        for statement in (
            "select sokka.create_task('a')",
            "select * from sokka.all_tasks",
            "table sokka.tasks",
            "select nextval('sokka.tasks_seq_seq')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        # Even with a way into the schema, each function and table is closed.
        connection.execute("reset role")
        connection.execute(f"grant usage on schema sokka to {role}")
        connection.execute(f"set role {role}")
        for statement in ("select sokka.create_task('a')", "table sokka.tasks"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_an_ordinary_role_migrates_a_schema_that_was_made_for_it(empty_db: str, role: str) -> None:
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(f"create schema jobs authorization {role}")
    url = make_conninfo(empty_db, options=f"-c role={role}")

    migrate.upgrade(url, "jobs")
    found = migrate.check(url, "jobs")
    assert (found.ok, found.drift) == (True, None)
    migrate.downgrade(url, "jobs")
    # The schema itself was not ours to drop: this role could not make it again.
    with psycopg.connect(empty_db) as connection:
        row = connection.execute("select to_regnamespace('jobs') is not null").fetchone()
    assert row == (True,)
    migrate.upgrade(url, "jobs")


def test_a_role_that_may_not_create_gets_one_clear_error(empty_db: str, role: str) -> None:
    url = make_conninfo(empty_db, options=f"-c role={role}")
    with pytest.raises(UnexpectedDatabaseError, match="permission denied for database"):
        migrate.upgrade(url)
    assert migrate.current(empty_db) is None
