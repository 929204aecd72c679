"""The promises stand in README.md word for word, and have tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import psycopg
import pytest

from sokka_pg import embedded
from sokka_pg.errors import LeaseExpired, WrongOwner
from sokka_pg.store import PgTaskStore
from tests import servers
from tests.docs.blocks import ROOT
from tests.docs.promises import PROMISES

COUNT = 50


def test_the_readme_states_them_word_for_word() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Promises\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\d\. (.*?)(?=^\d\. |^\w|\Z)", section, re.MULTILINE | re.DOTALL)
    assert [" ".join(promise.split()) for promise in listed] == [words for words, _ in PROMISES]


@pytest.mark.parametrize("number", range(1, len(PROMISES) + 1))
def test_the_tests_behind_a_promise_exist(number: int) -> None:
    for name in PROMISES[number - 1][1]:
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        assert function in {node.name for node in tree.body if isinstance(node, kinds)}, name


@pytest.fixture
def own_server(server: servers.Server) -> Iterator[embedded.Server]:
    """A server that this test may kill, with PostgreSQL's own durability settings."""
    found = embedded.all_binaries()
    binaries = next((b for b in found if b.version == server.major), found[-1])
    with embedded.Server.temporary(binaries=binaries) as own:
        servers.load_newest(own.url())
        yield own


def acknowledged(url: str) -> set[object]:
    """The ids of tasks whose creation was confirmed, one commit each."""
    with PgTaskStore(url) as store:
        return {store.create_task("t", {"number": number}).task_id for number in range(COUNT)}


def there(url: str) -> set[object]:
    with PgTaskStore(url) as store:
        return {task.task_id for task in store.reserve_tasks(["t"], "w", 10 * COUNT)}


def test_committed_tasks_outlive_a_killed_server(own_server: embedded.Server) -> None:
    made = acknowledged(own_server.url())
    own_server.kill()
    own_server.restart()
    assert there(own_server.url()) == made


def test_committed_tasks_outlive_a_failover_to_a_synchronous_standby(
    own_server: embedded.Server,
) -> None:
    with own_server.base_backup() as standby:
        with psycopg.connect(own_server.url(), autocommit=True) as connection:
            connection.execute("alter system set synchronous_standby_names = '*'")
            connection.execute("select pg_reload_conf()")
        made = acknowledged(own_server.url())
        own_server.kill()
        standby.promote()
        with psycopg.connect(standby.url(), autocommit=True) as connection:
            connection.execute("alter system reset synchronous_standby_names")
            connection.execute("select pg_reload_conf()")
        assert there(standby.url()) == made


def test_a_checkpoint_and_the_writes_beside_it_are_one_commit(db: str) -> None:
    with psycopg.connect(db) as connection, PgTaskStore(db) as store:
        connection.execute("create table part (number integer)")
        connection.commit()
        store.create_task("t")
        task = store.reserve_task("t", "w")
        assert task is not None
        with pytest.raises(ZeroDivisionError), store.transaction(task.lease) as fenced:
            fenced.connection.execute("insert into part values (1)")
            store.save_checkpoint(task, checkpoint=1, connection=fenced.connection)
            raise ZeroDivisionError
        with store.transaction(task.lease) as fenced:
            fenced.connection.execute("insert into part values (2)")
            store.save_checkpoint(task, checkpoint=2, connection=fenced.connection)
        found = store.task(task.task_id)
        assert found is not None and found.checkpoint == 2
        assert connection.execute("select array_agg(number) from part").fetchone() == ([2],)


def test_only_the_databases_clock_ends_a_lease(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as connection, PgTaskStore(db) as store:
        store.create_task("t")
        task = store.reserve_task("t", "w", 60)
        assert task is not None
        # This process has not waited, and has nothing to say about it.
        connection.execute(
            "create or replace function sokka.clock() returns timestamptz language sql volatile"
            " as $$ select clock_timestamp() + interval '60 seconds' $$"
        )
        with pytest.raises(LeaseExpired):
            store.extend_lease(task)
        other = store.acquire_lease(task.task_id, "w2")
        assert other.token > task.token
        with pytest.raises(WrongOwner):
            store.terminate(task)
