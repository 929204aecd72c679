"""Payloads on their way through the database: unchanged, or refused before it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sokka_pg import Sokka
from sokka_pg.errors import BadArgument
from sokka_pg.model import LeasedTask, RetryPolicy
from sokka_pg.payload import DATA_LIMIT, UndecodableJson
from sokka_pg.store import PgTaskStore

Row = Callable[[UUID], dict[str, Any]]
text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | text | st.floats(-1e15, 1e15),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=15,
)


@pytest.fixture
def task(store: PgTaskStore) -> LeasedTask:
    store.create_task("t", {"n": 1})
    found = store.reserve_task("t", "w1", 60)
    assert found is not None
    return found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(json_values)
def test_data_is_handed_over_exactly_as_it_was_given(store: PgTaskStore, value: Any) -> None:
    created = store.create_task("any", {"value": value})
    task = store.acquire_lease(created.task_id, "w1", 60)
    assert task.data == created.task.data == {"value": value}
    batch = store.create_tasks([{"topic": "any", "data": [value]}])
    found = store.task(batch[0].task_id)
    assert found is not None
    assert found.data == [value]
    store.terminate(task, result=[value])
    ended = store.task(task.task_id)
    assert ended is not None
    assert ended.result == [value]


@pytest.mark.parametrize(
    "value", ["\\u0000", "\\\\u0000", '{"$ref":1}', "%s :name {0}", "\u2028\u202e", "a\\", "'\"`$$"]
)
def test_text_that_looks_like_an_escape_is_left_alone(
    store: PgTaskStore, task: LeasedTask, value: str, row: Row
) -> None:
    assert store.create_task("t2", {value: value}).task.data == {value: value}
    store.report_progress(task, progress=value)
    assert row(task.task_id)["progress"] == value
    store.fail(task, error={"code": "x", "message": value, "details": {value: value}})
    assert row(task.task_id)["error"]["details"] == {value: value}


def test_a_nul_is_refused_where_it_would_be_kept_and_mended_where_a_failure_must_be_recorded(
    store: PgTaskStore, task: LeasedTask, row: Row
) -> None:
    before = row(task.task_id)
    for refused, path in (
        (lambda: store.create_task("t", {"a": "x\x00y"}), r"\$\.a"),
        (lambda: store.create_task("t", {"a\x00": 1}), r"\$\.a"),
        (lambda: store.create_task("t\x00", {}), "topic"),
        (lambda: store.report_progress(task, progress=["\x00"]), r"\$\[0\]"),
        (lambda: store.save_checkpoint(task, checkpoint={"b": ["\x00"]}), r"\$\.b\[0\]"),
        (lambda: store.terminate(task, result="\x00"), r"\$"),
    ):
        with pytest.raises(BadArgument, match=path):
            refused()
    assert row(task.task_id) == before
    store.fail(task, error=ValueError("x\x00y \ud800"))
    assert row(task.task_id)["error"]["message"] == "x\ufffdy \ufffd"


@pytest.mark.parametrize("size", [DATA_LIMIT, DATA_LIMIT + 1])
def test_the_limit_of_a_payload_is_exact_here_and_in_sql(store: PgTaskStore, size: int) -> None:
    data = "x" * (size - 2)
    if size <= DATA_LIMIT:
        assert store.create_task("t", data).task.data == data
        return
    with pytest.raises(BadArgument, match="larger than 1048576 bytes"):
        store.create_task("t", data)
    unchecked = PgTaskStore.__new__(PgTaskStore)
    unchecked.__dict__ = {**store.__dict__, "_max_data_bytes": 2 * DATA_LIMIT}
    with pytest.raises(BadArgument, match="1048576 bytes"):
        unchecked.create_task("t", data)


def test_an_installation_may_allow_larger_payloads(db: str, conn: psycopg.Connection) -> None:
    conn.execute("update sokka.settings set max_data_bytes = 4194304")
    with PgTaskStore(db, max_data_bytes=4 * DATA_LIMIT) as store:
        assert len(store.create_task("t", "x" * 2_000_000).task.data) == 2_000_000
    app = Sokka(db, max_data_bytes=4 * DATA_LIMIT)

    @app.task
    def keep(data: Any) -> None: ...

    assert len(keep.enqueue("x" * 2_000_000).task.data) == 2_000_000
    app.store.close()


@pytest.mark.parametrize(
    "result",
    [object(), {1}, float("nan"), float("inf"), 10**5000, b"x", datetime(2026, 1, 1), {1: "a"}],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_is_no_json_leaves_the_task_to_its_owner(
    store: PgTaskStore, task: LeasedTask, row: Row, result: Any
) -> None:
    before = row(task.task_id)
    with pytest.raises(BadArgument, match="result at"):
        store.terminate(task, result=result)
    assert row(task.task_id) == before
    assert store.terminate(task, result={"a": 1, "A": 2}).status == "terminated"


@pytest.mark.parametrize(
    "delay",
    [-1, -0.001, float("nan"), float("inf"), 1e18, True, "5", timedelta(-1), timedelta.max, None],
    ids=str,
)
def test_a_bad_delay_leaves_the_lease_untouched(
    store: PgTaskStore, task: LeasedTask, row: Row, delay: Any
) -> None:
    before = row(task.task_id)
    with pytest.raises(BadArgument, match="delay"):
        store.snooze(task, delay=delay)
    if delay is not None:
        with pytest.raises(BadArgument, match="delay"):
            store.retry(task, error="x", delay=delay)
    assert row(task.task_id) == before


@pytest.mark.parametrize("delay", [0, -0.0, 0.0004, timedelta(microseconds=1)])
def test_the_shortest_of_delays_is_a_delay(
    store: PgTaskStore, task: LeasedTask, until: Callable[..., None], delay: Any
) -> None:
    outcome = store.snooze(task, delay=delay)
    assert outcome.run_at is not None
    until("select clock_timestamp() >= %s", outcome.run_at)
    store.sweep()
    assert store.reserve_task("t", "w2") is not None


@pytest.fixture
def kathmandu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose own time zone is an odd one."""
    monkeypatch.setitem(os.environ, "TZ", "Asia/Kathmandu")
    monkeypatch.setitem(os.environ, "PGTZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("kathmandu")
def test_an_instant_is_stored_the_same_whatever_the_host_and_session_think(db: str) -> None:
    with PgTaskStore(db) as store:
        with pytest.raises(BadArgument, match="run_at"):
            store.create_task("t", run_at=datetime(2100, 3, 8, 2, 30))
        with pytest.raises(BadArgument, match="run_at"):
            store.create_tasks([{"topic": "t", "run_at": datetime(2100, 3, 8, 2, 30)}])
        said = datetime(2100, 3, 8, 2, 30, tzinfo=timezone(timedelta(hours=-5)))
        for created in (
            store.create_task("t", run_at=said).task_id,
            store.create_tasks([{"topic": "t", "run_at": said}])[0].task_id,
        ):
            found = store.task(created)
            assert found is not None
            assert found.run_at == said
            assert found.run_at.tzinfo is UTC


def test_one_unreadable_row_does_not_take_its_batch_with_it(
    store: PgTaskStore, conn: psycopg.Connection
) -> None:
    store.create_task("t", {"n": 1})
    conn.execute("select sokka.create_task('t', to_jsonb(trunc(10::numeric ^ 5000)))")
    conn.execute("select sokka.create_task('t', to_jsonb(10::numeric ^ 5000 + 0.5))")
    store.create_task("t", {"n": 4})
    tasks = store.reserve_tasks(["t"], "w1", 5, 60)
    assert [type(task.data) for task in tasks] == [dict, UndecodableJson, UndecodableJson, dict]
    for task in tasks[1:3]:
        assert store.fail(task, error=task.data.reason).status == "failed"


def test_durations_and_policies_come_back_as_they_were_given(store: PgTaskStore) -> None:
    policy = RetryPolicy(5, timedelta(seconds=1.5), timedelta(minutes=2), 3.0, 0.25)
    for created in (
        store.create_task("t", timeout=timedelta(days=1, microseconds=1), retry=policy).task_id,
        store.create_tasks(
            [{"topic": "t", "timeout": timedelta(days=1, microseconds=1), "retry": policy}]
        )[0].task_id,
    ):
        found = store.task(created)
        assert found is not None
        assert found.timeout == timedelta(days=1, microseconds=1)
        assert found.max_attempts == 5
        assert found.retry == {"initial": 1.5, "max": 120, "multiplier": 3, "jitter": 0.25}


def test_pages_follow_each_other_without_gap_or_repeat_and_end_with_none(
    store: PgTaskStore,
) -> None:
    made = {each.task_id for each in store.create_tasks([{"topic": "t"}] * 25)}
    seen: list[UUID] = []
    cursor = None
    while True:
        page = store.list_tasks({"topic": "t"}, cursor, 10)
        seen += [item.task_id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == len(made)
    assert set(seen) == made
    newest = store.list_tasks({"topic": "t"}, limit=5, descending=True)
    assert [item.task_id for item in newest.items] == seen[::-1][:5]


def test_a_cursor_that_is_none_of_ours_is_refused(store: PgTaskStore) -> None:
    for cursor in ("1%27--", "x" * 2_000, "\x00", "30"):
        with pytest.raises(BadArgument):
            store.list_tasks(cursor=cursor)
