"""Two schemas in one database are two queues that share nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

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


def test_a_fan_out_of_the_same_id_lives_in_both(both: Queue) -> None:
    join_id, kids = uuid4(), [str(uuid4()) for _ in range(2)]
    specs = Jsonb([{"topic": "c", "task_id": kid} for kid in kids])
    for name in ("sokka", "jobs"):
        (made,) = both.rows(
            f"select * from {name}.fan_out(%s, 'all', p_task_id => %s)", (specs, join_id)
        )
        assert made.created
    for kid in kids:
        (lease,) = both.rows("select * from jobs.acquire_lease(%s, 'w1')", (kid,))
        both.rows("select * from jobs.terminate_task(%s, 'w1', %s)", (kid, lease.token))
    assert both.value("select status from jobs.all_tasks where task_id = %s", join_id) == (
        "terminated"
    )
    assert both.row(join_id).status == "snoozed"
    assert both.value("select done from sokka.get_join(%s)", join_id) == 0
    both.rows("select * from sokka.cancel_task(%s)", (join_id,))
    both.rows("select * from sokka.sweep()")
    outcomes = [both.value(f"select outcome from {n}.fan_outs") for n in ("sokka", "jobs")]
    assert outcomes == ["cancelled", "satisfied"]
    assert both.value("select count(*) from sokka.task_tree(%s)", join_id) == 3


def test_steps_and_streams_of_the_same_task_are_apart(both: Queue) -> None:
    task_id = uuid4()
    for name in ("sokka", "jobs"):
        both.rows(f"select * from {name}.create_task('t', p_task_id => %s)", (task_id,))
        (lease,) = both.rows(f"select * from {name}.reserve_task('t', 'w1')")
        proof = (task_id, "w1", lease.token)
        for value in ("first", "second"):
            (step,) = both.rows(
                f"select * from {name}.record_step(%s, %s, %s, 's', to_jsonb(%s::text))",
                (*proof, name + value),
            )
        assert (step.value, step.recorded) == (name + "first", False)
        (found,) = both.rows(
            f"select * from {name}.append_stream(%s, %s, %s, to_jsonb(array[%s]))", (*proof, name)
        )
        assert found.last_seq == 1
    for name in ("sokka", "jobs"):
        (item,) = both.rows(f"select * from {name}.read_stream(%s)", (task_id,))
        assert item.item == name
    both.rows("select * from jobs.read_stream(%s, 1)", (task_id,))
    reads = [
        both.value(f"select stream_read from {name}.peek_tasks(array[%s])", task_id)
        for name in ("sokka", "jobs")
    ]
    assert reads == [0, 1]


def test_watchers_hear_on_the_channel_of_their_schema(both: Queue, another: Another) -> None:
    listener = another()
    listener.execute("listen sokka")
    listener.execute("listen jobs")
    task_id = uuid4()
    for name in ("sokka", "jobs"):
        both.rows(f"select * from {name}.create_task('t', p_task_id => %s)", (task_id,))
        both.value(f"select {name}.watch_tasks('w', array[%s], '1 minute')", task_id)
    both.rows("select * from jobs.cancel_task(%s)", (task_id,))
    heard = list(listener.connection.notifies(timeout=10, stop_after=1))
    both.rows("select * from sokka.cancel_task(%s)", (task_id,))
    heard += list(listener.connection.notifies(timeout=10, stop_after=1))
    assert [notice.channel for notice in heard] == ["jobs", "sokka"]
    assert len({notice.payload for notice in heard}) == 1


def test_a_parent_of_one_waits_for_no_child_of_the_other(both: Queue) -> None:
    parent, child = uuid4(), uuid4()
    for name in ("sokka", "jobs"):
        both.rows(f"select * from {name}.create_task('p', p_task_id => %s)", (parent,))
        both.rows(
            f"select * from {name}.create_task('c', p_task_id => %s, p_parent_task_id => %s)",
            (child, parent),
        )
        (lease,) = both.rows(f"select * from {name}.reserve_task('p', 'w1')")
        both.rows(
            f"select * from {name}.wait_for_task(%s, 'w1', %s, %s)", (parent, lease.token, child)
        )
    both.rows("select * from jobs.cancel_task(%s)", (child,))
    assert both.row(parent).status == "snoozed"
    assert both.value("select status from jobs.all_tasks where task_id = %s", parent) == "starting"
