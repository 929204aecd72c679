"""The revisions lead to what sql/ says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg

from sokka_pg import catalogue, migrate, schema
from sokka_pg.migrate import scripts

Objects = Callable[..., dict[str, str]]


def test_replaying_all_revisions_equals_loading_the_sql(empty_db: str, objects: Objects) -> None:
    migrate.upgrade(empty_db)
    with psycopg.connect(empty_db) as connection:
        schema.load(connection, "loaded_from_sql")
    expected = objects(empty_db, "loaded_from_sql")

    assert len(expected) > 200
    assert catalogue.differences(expected, objects(empty_db)) == []


def test_a_difference_does_not_go_unseen(empty_db: str, objects: Objects) -> None:
    migrate.upgrade(empty_db)
    before = objects(empty_db)
    changes = {
        "differs: column tasks.kind": "alter table sokka.tasks alter kind set storage external",
        "not ours: column tasks.more": "alter table sokka.tasks add more int",
        "not ours: index sokka.odd": "create index odd on sokka.tasks (kind)",
        "not ours: grant on get_task to PUBLIC": (
            "grant execute on function sokka.get_task to public"
        ),
        "missing: function sokka.get_task(uuid)": "drop function sokka.get_task",
        "differs: view all_tasks": "alter view sokka.all_tasks set (security_barrier = true)",
        "differs: function sokka.clock()": "alter function sokka.clock() set timezone = 'UTC'",
    }
    for what, change in changes.items():
        with psycopg.connect(empty_db) as connection:
            connection.execute(change.encode())
            found = catalogue.differences(before, catalogue.read(connection, "sokka"))
            connection.rollback()
        words = what.replace("grant on get_task", "grant on sokka.get_task(uuid)")
        assert words in found, change


def test_each_revision_can_be_left_and_reached_again(empty_db: str, objects: Objects) -> None:
    for revision in migrate.revisions():
        migrate.upgrade(empty_db, to=revision)
        there = objects(empty_db)

        migrate.downgrade(empty_db, to=migrate.revision_below(revision))
        migrate.upgrade(empty_db, to=revision)

        assert catalogue.differences(there, objects(empty_db)) == []
        assert migrate.current(empty_db) == revision


def test_the_frozen_copies_are_up_to_date_and_released_ones_untouched() -> None:
    freeze = schema.migrations_root() / "freeze.py"
    run = subprocess.run(
        [sys.executable, freeze, "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_every_sql_file_is_listed_in_the_manifest_once() -> None:
    root = schema.sql_root()
    listed = set(schema.manifest(root)) | set(schema.manifest(root, schema.FENCE))
    # grants to roles, which belong to the whole cluster: a DBA runs it, no migration
    by_hand = {root / "roles.sql"}
    assert set(root.rglob("*.sql")) == listed | by_hand


def test_the_revisions_form_one_line() -> None:
    known = migrate.revisions()
    assert known == sorted(known)
    assert scripts.is_down(known[-1], "base")
    assert not scripts.is_down("base", known[-1])
