"""Two schemas in one database are two queues that share nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest

from sokka_pg import schema
from tests.sql.calling import Queue

Another = Callable[..., Queue]


@pytest.fixture
def both(fresh: Queue) -> Iterator[Queue]:
    schema.load(fresh.connection, "jobs")
    fresh.value("select jobs.trust_tokens()")
    yield fresh


def test_the_same_id_and_key_live_in_both(both: Queue) -> None:
    task_id = uuid4()
    for name in ("sokka", "jobs"):
        (made,) = both.rows(
            f"select * from {name}.create_task('t', p_task_id => %s, p_unique_key => 'k')",
            (task_id,),
        )
        assert made.created
    (lease,) = both.rows("select * from jobs.reserve_task('t', 'w1')")
    assert both.row(task_id).status == "starting"
    with pytest.raises(psycopg.Error) as caught:
        both.rows("select * from sokka.terminate_task(%s, 'w1', %s)", (task_id, lease.token))
    assert caught.value.sqlstate == "SK006"
    both.rows("select * from jobs.terminate_task(%s, 'w1', %s)", (task_id, lease.token))
    assert both.row(task_id).status == "starting"
    assert both.value("select status from jobs.all_tasks") == "terminated"


def test_neither_waits_for_the_other(both: Queue, another: Another) -> None:
    """Sweepers, fences and idle marks lock by schema."""
    task_id = uuid4()
    for name in ("sokka", "jobs"):
        both.rows(f"select * from {name}.create_task('t', p_task_id => %s)", (task_id,))
    holder = another(autocommit=False)
    holder.rows("select * from sokka.sweep()")
    holder.value("select sokka.mark_idle(array['t'], 'w', '1 minute')")
    lease = holder.reserve("t")
    holder.verb("assert_lease", lease)
    both.execute("set statement_timeout = '10 s'")
    (swept,) = both.rows("select * from jobs.sweep()")
    assert swept.next_due_at is None
    assert both.value("select jobs.mark_idle(array['t'], 'w', '1 minute')")
    both.rows("select * from jobs.create_task('t')")
    (got,) = both.rows("select * from jobs.reserve_task('t', 'w1')")
    assert got.task_id == task_id


def test_hints_and_turns_are_apart(both: Queue) -> None:
    for name in ("sokka", "jobs"):
        for _ in range(5):
            both.rows(f"select * from {name}.create_task('t')")
    both.rows("select * from sokka.reserve_tasks(array['t'], 'w1', 4)")
    assert both.value("select current_setting('skpg_hint.jobs', true)") in (None, "")
    assert len(both.rows("select * from jobs.reserve_tasks(array['t'], 'w1', 5)")) == 5


def test_each_notifies_on_its_own_channel(both: Queue, another: Another) -> None:
    listener = another()
    listener.execute("listen sokka")
    listener.execute("listen jobs")
    both.value("select sokka.mark_idle(array['t'], 'w', '1 minute')")
    both.value("select jobs.mark_idle(array['t'], 'w', '1 minute')")
    both.rows("select * from jobs.create_task('t')")
    heard = list(listener.connection.notifies(timeout=10, stop_after=1))
    both.rows("select * from sokka.create_task('t')")
    heard += list(listener.connection.notifies(timeout=10, stop_after=1))
    assert [notice.channel for notice in heard] == ["jobs", "sokka"]


def test_a_fence_of_one_opens_no_table_guarded_by_the_other(both: Queue) -> None:
    both.execute("create table app (id int)")
    both.rows("select jobs.guard_table('app')")
    lease = both.leased("t")
    with both.connection.transaction():
        both.verb("assert_lease", lease)
        with pytest.raises(psycopg.Error) as caught:
            both.execute("insert into app values (1)")
        assert caught.value.sqlstate == "SK013"
        raise psycopg.Rollback
    both.rows("select sokka.guard_table('app')")
    both.rows("select jobs.unguard_table('app')")
    with both.connection.transaction():
        both.verb("assert_lease", lease)
        both.execute("insert into app values (1)")


def test_dropping_one_leaves_the_other(both: Queue) -> None:
    lease = both.leased("t")
    both.execute("drop schema jobs cascade")
    both.verb("terminate_task", lease)
    assert both.one("sweep").woken == 0
