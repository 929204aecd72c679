"""What the product shows: read from the database and the code, not from a list."""

from __future__ import annotations

import psycopg
import typer

from sokka_pg import errors
from sokka_pg.cli.main import app

# Callable by name beside the verbs, which run with the owner's rights.
PLAIN = {"guard_table", "unguard_table", "clock", "schema_version", "topic_hash"}
VIEWS = {
    "all_tasks", "task_history", "topic_stats", "live_leases", "open_fences", "audit_log",
    "fan_outs", "all_schedules", "fired_ticks", "held_locks",
}  # fmt: skip


def functions(connection: psycopg.Connection, schema: str = "sokka") -> dict[str, int]:
    """Every function of the schema, with its oid."""
    found = connection.execute(
        "select proname, oid from pg_proc where pronamespace = %s::regnamespace", (schema,)
    ).fetchall()
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), "a function has an overload"
    return dict(found)


def public_functions(connection: psycopg.Connection) -> set[str]:
    """The functions that callers are meant to call."""
    verbs = connection.execute(
        "select proname from pg_proc where pronamespace = 'sokka'::regnamespace"
        " and prosecdef and prorettype <> 'trigger'::regtype"
    ).fetchall()
    return {name for (name,) in verbs} | PLAIN


def relations(connection: psycopg.Connection, schema: str = "sokka") -> set[str]:
    """Every table and view of the schema."""
    found = connection.execute(
        "select relname from pg_class where relnamespace = %s::regnamespace"
        " and relkind in ('r', 'p', 'v', 'm')", (schema,)
    ).fetchall()  # fmt: skip
    return {name for (name,) in found}


def columns(connection: psycopg.Connection, view: str) -> set[str]:
    found = connection.execute(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0",
        (f"sokka.{view}",),
    ).fetchall()
    return {name for (name,) in found}


def arguments(connection: psycopg.Connection, function: str) -> list[tuple[str, bool]]:
    """The arguments of a function, without p_, and whether each may be left out."""
    row = connection.execute(
        "select proargnames, pronargs, pronargdefaults from pg_proc"
        " where pronamespace = 'sokka'::regnamespace and proname = %s", (function,)
    ).fetchone()  # fmt: skip
    assert row is not None
    names = [name.removeprefix("p_") for name in (row[0] or [])[: row[1]]]
    return [(name, position >= row[1] - row[2]) for position, name in enumerate(names)]


def error_classes() -> dict[str, type[errors.SokkaError]]:
    """Every error class that a caller may meet."""
    return {
        name: cls for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.SokkaError)
    }  # fmt: skip


def commands() -> set[str]:
    """Every command: ``sokka task list`` and so on."""
    found: set[str] = set()

    def walk(command: object, path: str) -> None:
        children = getattr(command, "commands", None)
        if not children or getattr(command, "invoke_without_command", False):
            found.add(path)
        for name, child in (children or {}).items():
            walk(child, f"{path} {name}")

    walk(typer.main.get_command(app), "sokka")
    return found - {"sokka"}


def words_of(cls: type) -> set[str]:
    """What callers may use of a class."""
    return {name for name in dir(cls) if not name.startswith("_")}
