"""Looks at tasks, and hints of when to look again, for every kind of caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from sokka_pg.calls import task_hash
from tests.contract.callers import Caller, leased, new_task, refusal


@pytest.fixture
def heard(connect: Callable[..., psycopg.Connection]) -> Callable[[], set[str]]:
    """What was notified since the last look: a notification of one's own comes last."""
    connection = connect(autocommit=True)
    connection.execute("listen sokka")

    def hear() -> set[str]:
        mark = uuid4().hex
        connection.execute("select pg_notify('sokka', %s)", (mark,))
        found: set[str] = set()
        for notice in connection.notifies(timeout=20):
            if notice.payload == mark:
                return found
            found.add(notice.payload)
        raise AssertionError("nothing was heard")

    return hear


def news_of(task_id: UUID) -> str:
    return "d" + task_hash(task_id)


def test_a_look_shows_what_changes_and_leaves_out_who_is_unknown(caller: Caller) -> None:
    waiting = new_task(caller, "waiting")
    task = leased(caller, "t")
    proof = (task.task_id, "w1", task.token)
    looks = {look.task_id: look for look in caller("peek_tasks", [waiting, uuid4(), task.task_id])}
    assert looks.keys() == {waiting, task.task_id}
    assert looks[waiting].status == "starting"
    before = looks[task.task_id]
    assert (before.status, before.attempt, before.progress) == ("running", 1, None)
    assert (before.stream_seq, before.stream_read, before.finished_at) == (None, None, None)
    caller("report_progress", *proof, progress={"percent": 5})
    caller("append_stream", *proof, items=[1, 2])
    caller("read_stream", task.task_id, 1)
    caller("cancel", task.task_id, "enough")
    (after,) = caller("peek_tasks", [task.task_id])
    assert after.record_ver > before.record_ver
    assert (after.progress, after.stream_seq, after.stream_read) == ({"percent": 5}, 2, 1)
    assert after.cancel_requested_at is not None
    caller("terminate", *proof)
    (last,) = caller("peek_tasks", [task.task_id])
    assert (last.status, last.stream_seq) == ("terminated", 2)
    assert last.finished_at is not None
    assert caller("peek_tasks", []) == []


def test_too_many_tasks_at_once_are_refused(caller: Caller) -> None:
    many = [uuid4()] * 10_001
    assert refusal(caller, "peek_tasks", many) == "22023"
    assert refusal(caller, "watch_tasks", "me", many, 60) == "22023"


def acts(caller: Caller, task: Any) -> list[tuple[str, Callable[[], Any]]]:
    proof = (task.task_id, "w1", task.token)
    return [
        ("progress", lambda: caller("report_progress", *proof, progress=1)),
        ("an item", lambda: caller("append_stream", *proof, items=[1, 2])),
        ("a reader", lambda: caller("read_stream", task.task_id, 1)),
        ("the end", lambda: caller("terminate", *proof)),
    ]


def test_whoever_watches_a_task_hears_of_its_news_and_nobody_of_others(
    caller: Caller, heard: Callable[[], set[str]]
) -> None:
    watched, other = leased(caller, "t"), leased(caller, "u")
    assert caller("watch_tasks", "me", [watched.task_id], 60) == 1
    heard()
    for what, act in acts(caller, other):
        act()
        assert heard() == set(), what
    for what, act in acts(caller, watched):
        act()
        assert heard() == {news_of(watched.task_id)}, what


def test_a_watch_ends_when_it_is_over_or_taken_back(
    caller: Caller, heard: Callable[[], set[str]], until: Callable[..., None]
) -> None:
    first, second, third = (leased(caller, topic) for topic in ("a", "b", "c"))
    caller("watch_tasks", "me", [first.task_id, second.task_id], 60)
    caller("watch_tasks", "you", [second.task_id, third.task_id], 60)
    caller("watch_tasks", "they", [first.task_id], 0.001)
    over = "select watched_until < clock_timestamp() from sokka.watched_tasks where watcher = %s"
    until(over, "they")
    heard()
    caller("unwatch_tasks", "me", [first.task_id])
    caller("unwatch_tasks", "you", None)
    for task in (first, second, third):
        caller("terminate", task.task_id, "w1", task.token)
    assert heard() == {news_of(second.task_id)}


@pytest.mark.parametrize(
    "arguments",
    [(None, [], 60), ("", [], 60), ("me", None, 60), ("me", [], 0), ("me", [], 400 * 86_400)],
)
def test_a_watch_needs_a_name_and_a_time(caller: Caller, arguments: tuple[Any, ...]) -> None:
    assert refusal(caller, "watch_tasks", *arguments) == "22023"
