"""The schema's name: chosen freely within a rule, and then nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
import pytest

from sokka_pg import migrate, schema
from sokka_pg.errors import BadArgument

Objects = Callable[..., dict[str, str]]
HOSTILE = [
    "", " ", "Sokka", "1st", "a-b", "a.b", 'a"b', "a'b", "a;drop schema public", "a b", "a\nb",
    "a\x00b", "sökka", "a" * 41, "a" * 64, "pg_sokka", "pg_", "public", "information_schema",
    "select", "user", "order", "json_table", "sokka\n", "$user", "%s", "{}", "..", "null",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_that_would_need_quotes_is_refused_before_any_sql(name: str) -> None:
    nowhere = "host=nowhere.invalid"
    acts: list[Callable[[], object]] = [
        lambda: migrate.upgrade(nowhere, name),
        lambda: migrate.downgrade(nowhere, name),
        lambda: migrate.current(nowhere, name),
        lambda: migrate.check(nowhere, name),
        lambda: migrate.fence_only(nowhere, name),
        lambda: migrate.sql(name),
        lambda: migrate.fence_sql(name),
        lambda: migrate.ignore_name(name),
    ]
    for act in acts:
        with pytest.raises(BadArgument, match="schema: ") as caught:
            act()
        assert caught.value.detail["argument"] == "schema"


@pytest.mark.parametrize("name", [None, 7, b"sokka", ["sokka"]])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(BadArgument, match="schema: "):
        schema.check_name(name)  # type: ignore[arg-type]


def test_every_key_word_of_the_server_is_refused(empty_db: str) -> None:
    with psycopg.connect(empty_db) as connection:
        words = connection.execute(
            "select word from pg_get_keywords() where catcode <> 'U'"
        ).fetchall()
    for (word,) in words:
        with pytest.raises(BadArgument):
            schema.check_name(word)


@pytest.mark.parametrize("name", ["jobs", "_", "t", "p_task", "v_row", "tasks", "a" * 40, "exit"])
def test_a_queue_works_under_any_other_name(empty_db: str, name: str) -> None:
    migrate.upgrade(empty_db, name)
    assert migrate.check(empty_db, name).ok
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(f"select {name}.create_task('a', '1')")
        leased = connection.execute(
            f"select task_id, pid, token from {name}.reserve_task('a', 'w', '30 s')"
        ).fetchone()
        connection.execute(f"select {name}.terminate_task(%s, %s, %s, '2')", leased)
        history = f"select event from {name}.task_history order by seq"
        events = connection.execute(history).fetchall()
    assert [event for (event,) in events] == ["created", "reserved", "terminated"]


def test_two_schemas_in_one_database_share_nothing(db: str, objects: Objects) -> None:
    migrate.upgrade(db, "second_queue")
    assert objects(db, "second_queue") == objects(db)

    with psycopg.connect(db, autocommit=True) as connection:
        connection.execute("select second_queue.create_task('a')")
        assert connection.execute("select count(*) from sokka.all_tasks").fetchone() == (0,)
        taken = connection.execute("select task_id from sokka.reserve_task('a', 'w')").fetchall()
        assert taken == []
        connection.execute("select sokka.create_task('a')")
        migrate.downgrade(db)
        assert connection.execute("select count(*) from second_queue.all_tasks").fetchone() == (1,)
        assert migrate.check(db, "second_queue").ok


def test_no_object_of_another_schema_still_says_sokka(empty_db: str) -> None:
    migrate.upgrade(empty_db, "second_queue")
    with psycopg.connect(empty_db) as connection:
        dump = connection.execute(
            """
            select format('function %s', oid::regprocedure), pg_get_functiondef(oid)
            from pg_proc where pronamespace = 'second_queue'::regnamespace and prokind = 'f'
            union all
            select format('view %s', oid::regclass), pg_get_viewdef(oid)
            from pg_class where relnamespace = 'second_queue'::regnamespace and relkind = 'v'
            union all
            select format('default %s', adrelid::regclass), pg_get_expr(adbin, adrelid)
            from pg_attrdef
            union all
            select format('constraint %s', conname), pg_get_constraintdef(oid)
            from pg_constraint where connamespace = 'second_queue'::regnamespace
            union all
            select format('trigger %s', tgname), pg_get_triggerdef(oid) from pg_trigger
            union all
            select 'schema', nspname::text from pg_namespace
            """
        ).fetchall()
    assert len(dump) > 100
    left = [what for what, text in dump if re.search(r"\bsokka\b", text)]
    assert left == []
