"""Most tasks take a short road through the SQL. It leads where the long one leads."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR

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


@dataclass(frozen=True)
class End:
    """An attempt's end: as a member of a batch (``arg``), and by its own verb (``given``)."""

    verb: str
    arg: Any
    given: dict[str, Any]
    task: dict[str, Any] = field(default_factory=dict)
    before: str = ""
    """What is set in the task's row before it ends."""


MANY = {"max_attempts": 5}
RICH = ERROR | {"traceback": ["a", "b"], "cause": None}
STEEP = {"max_attempts": 9, "retry": {"initial": 1, "max": 99, "multiplier": 3}}
CANCELLED = "cancel_requested_at = sokka.clock(), cancel_reason = 'no'"
TOGETHER = [
    End("retry", {"error": ERROR}, {"error": ERROR}, MANY),
    End("retry", {"error": RICH, "delay": None}, {"error": RICH}, {"retry": {"initial": 3}} | MANY),
    End("retry", {"error": {}, "delay": 0.25}, {"error": {}, "delay": "250 ms"}, MANY),
    End("retry", {"error": {}}, {"error": {}}, STEEP, "failures = 3, error = '[1]', losses = 2"),
    End("retry", {"error": {}}, {"error": {}}, MANY, "failures = 2147483647"),
    End("retry", {"error": RICH, "delay": 5}, {"error": RICH, "delay": "5 s"}, {"max_attempts": 1}),
    End("retry", {"error": {}}, {"error": {}}, MANY, "parent_task_id = gen_random_uuid()"),
    End("snooze", 1.5, {"snooze": "1.5 s"}, {}, "error = '[1]', losses = 2"),
    End("snooze", 315576000, {"snooze": "3652.5 days"}),
    End("fail", {}, {"error": {}}),
    End("fail", RICH, {"error": RICH}, {"data": LARGE, "headers": {"h": "v"}}),
    End("fail", {"code": "boom"}, {"error": {"code": "boom"}}, {}, CANCELLED),
]
ALONE = [
    End("retry", {"error": {}, "delay": "PT1M"}, {"error": {}, "delay": "1 min"}, MANY),
    End("retry", {"error": {}, "delay": 0}, {"error": {}, "delay": "0"}, MANY),
    End("retry", {"error": RICH}, {"error": RICH}, MANY, CANCELLED),
    End("snooze", 3, {"snooze": "3 s"}, {}, CANCELLED),
    End("snooze", 0, {"snooze": "0"}),
    End("snooze", "PT1M", {"snooze": "1 min"}),
    End("fail", {"code": "cancelled"}, {"error": {"code": "cancelled"}}),
    End("fail", ERROR, {"error": ERROR}, {}, "is_join = true"),
    End("fail", ERROR, {"error": ERROR}, {}, "parent_task_id = gen_random_uuid()"),
]
"""What is not ended together with others, but comes to the same."""


def _ended(queue: Queue, lease: Row, call: Callable[[], Row]) -> tuple[Any, ...]:
    """What a verb answers and leaves, taken back."""
    with queue.connection.transaction(force_rollback=True):
        told, image = call(), queue.image(lease.task_id)
        if image["live"]:
            del image["live"]["queue_pos"]  # a sequence does not go back
        return told.status, told.record_ver, told.run_at, image


@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
def test_an_end_is_the_same_in_a_batch_and_by_itself(fresh: Queue, together: bool) -> None:
    clock = Clock(fresh)
    for number, end in enumerate(TOGETHER if together else ALONE):
        lease = fresh.leased(f"t{number}", **end.task)
        if end.before:
            fresh.execute(f"update sokka.tasks set {end.before} where task_id = %s", lease.task_id)

        def in_batch(end: End = end, lease: Row = lease) -> Row:
            if together:  # the road of one by one is closed
                fresh.execute("alter function sokka.settle_one rename to closed")
            (row,) = fresh.call(
                "settle_tasks", pid="w1", task_ids=[lease.task_id], tokens=[lease.token],
                verbs=[end.verb], args=[Jsonb(end.arg)],
            )  # fmt: skip
            assert (row.ord, row.task_id, row.verdict) == (1, lease.task_id, "ok")
            return Row(**row.detail | {"run_at": datetime.fromisoformat(row.detail["run_at"])})

        clock.stop()
        alone = _ended(fresh, lease, lambda: fresh.verb(f"{end.verb}_task", lease, **end.given))  # noqa: B023
        assert _ended(fresh, lease, in_batch) == alone, end
        fresh.execute("update public.test_clock set stopped_at = null")


def test_members_of_all_sorts_are_ended_in_one_batch(queue: Queue, topic: str) -> None:
    """Those that can be ended together, those that cannot, and refusals: each has its word."""
    members: list[tuple[str, Any, dict[str, Any], str]] = [
        ("retry", {"error": ERROR}, MANY, "snoozed"), ("terminate", 1, {}, "terminated"),
        ("fail", ERROR, {}, "failed"), ("retry", {"error": ERROR}, {"max_attempts": 1}, "failed"),
        ("snooze", 60, {}, "snoozed"), ("snooze", 0, {}, "starting"),
        ("release", None, {}, "starting"), ("fail", ERROR, {}, "SK005"),
        ("snooze", -1, {}, "22023"), ("fail", {"code": "cancelled"}, {}, "failed"),
    ]  # fmt: skip
    leases = [queue.leased(topic, **given) for _, _, given, _ in members]
    again = [(members[0], leases[0]), (members[2], leases[2])]
    chosen = [*zip(members, leases, strict=True), *again]
    rows = queue.call(
        "settle_tasks", pid="w1", task_ids=[lease.task_id for _, lease in chosen],
        tokens=[lease.token - (member[3] == "SK005") for member, lease in chosen],
        verbs=[member[0] for member, _ in chosen], args=[Jsonb(member[1]) for member, _ in chosen],
    )  # fmt: skip
    found = {row.ord: row for row in rows}
    assert sorted(found) == list(range(1, len(chosen) + 1))
    for place, (_, _, _, left) in enumerate(members, 1):
        row = found[place]
        if row.verdict == "ok":
            assert queue.row(row.task_id).status == left
            assert left == "terminated" or row.detail["status"] == left
        else:
            assert row.verdict == left
    assert [found[11].verdict, found[12].verdict] == ["SK006", "SK002"]


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
