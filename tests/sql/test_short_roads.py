"""Most tasks take a short road through the SQL. It leads where the long one leads."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Queue

AT = datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)
# Hashes, so that compression does not make it small.
LARGE = {"text": "".join(hashlib.md5(bytes([n])).hexdigest() for n in range(200))}
# What a task may be given on the short road; the unique key takes it to the long one.
OPTIONS: list[dict[str, Any]] = [
    {}, {"data": {"a": [1, None]}}, {"kind": "k", "sub_topic": "s"}, {"priority": 0},
    {"run_at": AT}, {"expires_at": AT}, {"timeout": timedelta(seconds=90)},
    {"max_attempts": 4, "max_losses": 0}, {"retry": {"max_attempts": 3, "initial": 2}},
    {"retry": {"max_attempts": 3}, "max_attempts": 7}, {"headers": {"h": "v"}},
    {"task_group_id": uuid.UUID(int=7)}, {"on_conflict": "error"}, {"data": LARGE},
    {"kind": None, "sub_topic": None, "priority": None, "max_losses": None, "on_conflict": None},
]  # fmt: skip
OWN = {"task_id", "task_group_id", "created_at", "updated_at", "run_at", "unique_key", "created"}


def told(row: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name not in OWN}


def spec_of(options: dict[str, Any]) -> dict[str, Any]:
    texts = (datetime, uuid.UUID)
    return {
        name: value.total_seconds() if isinstance(value, timedelta)
        else str(value) if isinstance(value, texts) else value
        for name, value in options.items()
    }  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
def test_every_road_makes_the_same_task(queue: Queue, topic: str, options: dict[str, Any]) -> None:
    one = {k: Jsonb(v) if k in ("data", "retry", "headers") else v for k, v in options.items()}
    short = queue.one("create_task", topic=topic, **one)
    long = queue.one("create_task", topic=topic, unique_key="1", **one)
    spec = {"topic": topic, **spec_of(options)}
    bulk = queue.call("create_tasks", specs=Jsonb([spec, spec]))
    bulk += queue.call("create_tasks", specs=Jsonb([{**spec, "unique_key": "2"}, {"topic": topic}]))
    data = spec.pop("data", None)
    alike = queue.call("create_tasks_like", spec=Jsonb(spec), data=Jsonb([data, data]))

    expected = told(long)
    assert told(short) == expected
    read = [queue.row(row.task_id) for row in [short, *bulk[:3], *alike]]
    assert [told(row) for row in read] == [
        {k: v for k, v in expected.items() if k in told(row)} for row in read
    ]
    for row in (short, long):
        assert row.task_group_id == options.get("task_group_id", row.task_id)
        assert row.run_at == options.get("run_at", row.created_at)
        assert row.created


def test_large_payloads_among_small_ones_are_each_kept(queue: Queue, topic: str) -> None:
    payloads: list[Any] = [1, LARGE, None, "x", LARGE, {"n": 6}]
    made = queue.call(
        "create_tasks", specs=Jsonb([{"topic": topic, "data": data} for data in payloads])
    )
    assert [queue.row(row.task_id).data for row in made] == payloads
    leases = queue.call("reserve_tasks", topics=[topic], pid="w", max_tasks=10)
    assert [lease.data for lease in leases] == payloads


def test_ids_of_one_bulk_call_rise_with_their_order(queue: Queue, topic: str) -> None:
    made = queue.call("create_tasks", specs=Jsonb([{"topic": topic}] * 10_000))
    ids = [row.task_id for row in made]
    assert ids == sorted(set(ids))
    assert {(task_id.version, task_id.variant) for task_id in ids} == {(7, uuid.RFC_4122)}


def test_a_function_that_forbids_plans_does_not_compile_them(queue: Queue) -> None:
    """A plan that cannot be had otherwise counts as so dear that JIT would begin."""
    found = queue.rows(
        "select proname as name, proconfig as settings from pg_proc"
        " where pronamespace = 'sokka'::regnamespace and proconfig::text like '%%enable_%%'"
    )
    assert len(found) > 10
    assert [row.name for row in found if "jit=off" not in row.settings] == []


def test_what_runs_for_each_task_is_not_parsed_each_time(fresh: Queue) -> None:
    """A function in SQL that is not evaluated in place is parsed once a transaction."""
    url = fresh.connection.info.dsn
    with psycopg.connect(url, autocommit=True) as connection:
        queue = Queue(connection)
        queue.execute("set track_functions = 'all'")
        queue.call("create_tasks", specs=Jsonb([{"topic": "t", "timeout": 3, "data": [1]}] * 9))
        queue.one("create_task", topic="t", timeout=timedelta(seconds=1))
        for verb in ("terminate", "retry", "snooze", "fail"):
            (lease,) = queue.call("reserve_tasks", topics=["t"], pid="w", max_tasks=1)
            arg = Jsonb({"terminate": 1, "snooze": 1}.get(verb, {"error": {}}))
            queue.value(
                "select count(*) from sokka.settle_and_reserve('w', %s, %s, %s, %s, null, 0)",
                [lease.task_id], [lease.token], [verb], [arg],
            )  # fmt: skip
        queue.one("sweep")
        pid = connection.info.backend_pid
    # It says what it counted when it goes.
    fresh.until("select count(*) = 0 from pg_stat_activity where pid = %s", pid)
    names = fresh.rows(
        "select f.funcname as name from pg_stat_user_functions f join pg_proc p on p.oid = f.funcid"
        " join pg_language l on l.oid = p.prolang where l.lanname = 'sql' and f.calls > 0"
    )
    # The clock stands here for another one's; until_told is a constant.
    assert {row.name for row in names} <= {"until_told", "clock", "partition_name"}
    assert fresh.value("select count(*) from pg_stat_user_functions where calls > 0") > 5
