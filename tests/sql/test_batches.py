"""extend_leases and terminate_tasks: one verdict for each member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Queue, Row
from tests.sql.states import WRONG_STATES, Claim


def batch(function: str, queue: Queue, claims: list[Claim], **options: Any) -> list[Row]:
    rows = queue.call(
        function,
        pid="w1",
        task_ids=[claim.task_id for claim in claims],
        tokens=[claim.token for claim in claims],
        **options,
    )
    return sorted(rows, key=lambda row: row.ord)


@pytest.mark.parametrize("function", ["extend_leases", "terminate_tasks"])
def test_each_member_gets_its_own_verdict(queue: Queue, function: str) -> None:
    wrong = list(WRONG_STATES)
    claims = [state(queue) for state in wrong] + [states.running(queue)]
    claims.reverse()
    before = {claim: queue.image(claim.task_id) for claim in claims[1:]}
    rows = batch(function, queue, claims)
    assert [row.ord for row in rows] == list(range(1, len(claims) + 1))
    assert [row.task_id for row in rows] == [claim.task_id for claim in claims]
    assert [row.verdict for row in rows] == ["ok", *(WRONG_STATES[s] for s in reversed(wrong))]
    assert {claim: queue.image(claim.task_id) for claim in before} == before


def test_a_verdict_of_terminating_tells_how_the_row_stands(queue: Queue) -> None:
    claims = [state(queue) for state in WRONG_STATES]
    for row, claim in zip(batch("terminate_tasks", queue, claims), claims, strict=True):
        assert row.detail["task_id"] == str(claim.task_id)
        assert row.detail["expected"] == {"pid": "w1", "token": claim.token}
        if row.verdict == "SK001":
            assert row.detail["status"] is None
            continue
        found = queue.row(claim.task_id)
        for column in ("status", "pid", "token", "record_ver"):
            assert row.detail[column] == getattr(found, column), column


@pytest.mark.parametrize("function", ["extend_leases", "terminate_tasks"])
def test_an_empty_batch_has_no_verdicts(queue: Queue, function: str) -> None:
    assert queue.call(function, pid="w1", task_ids=[], tokens=[]) == []


@pytest.mark.parametrize("size", [1, 2, 10, 100, 500, 2000])
def test_batches_of_every_size_are_extended_and_ended_whole(
    queue: Queue, topic: str, size: int
) -> None:
    queue.call("create_tasks", specs=Jsonb([{"topic": topic, "data": n} for n in range(size)]))
    leases = queue.call("reserve_tasks", topics=[topic], pid="w1", max_tasks=size)
    assert len(leases) == size
    claims = [states.of(lease) for lease in sorted(leases, key=lambda lease: hash(lease.task_id))]
    extended = batch("extend_leases", queue, claims, lease="2 hours")
    assert [row.verdict for row in extended] == ["ok"] * size
    assert all(row.lease_expires_at > leases[0].lease_expires_at for row in extended)
    results = [Jsonb(n) for n in range(size)]
    ended = batch("terminate_tasks", queue, claims, results=results)
    assert [row.verdict for row in ended] == ["ok"] * size
    found = queue.rows(
        "select task_id, result, status from sokka.all_tasks where topic = %s", (topic,)
    )
    assert {row.task_id: row.result for row in found} == {
        claim.task_id: n for n, claim in enumerate(claims)
    }
    assert {row.status for row in found} == {"terminated"}


def test_a_task_named_twice_ends_once(queue: Queue) -> None:
    one, other = states.running(queue), states.running(queue)
    rows = batch(
        "terminate_tasks", queue, [one, other, one], results=[Jsonb(1), Jsonb(2), Jsonb(3)]
    )
    assert [row.verdict for row in rows] == ["ok", "ok", "SK002"]
    assert (rows[2].detail["status"], rows[2].detail["pid"]) == ("terminated", "w1")
    assert queue.row(one.task_id).result == 1
    assert queue.events(one.task_id) == ["created", "reserved", "terminated"]


def test_a_task_named_twice_with_a_wrong_token_ends_by_the_right_one(queue: Queue) -> None:
    claim = states.running(queue)
    stale = Claim(claim.task_id, claim.pid, claim.token - 1)
    rows = batch("terminate_tasks", queue, [stale, claim])
    assert [row.verdict for row in rows] in (["SK005", "ok"], ["SK002", "ok"])


def test_a_task_named_twice_is_extended_both_times(queue: Queue) -> None:
    claim = states.running(queue)
    rows = batch("extend_leases", queue, [claim, claim], lease="3 hours")
    assert [row.verdict for row in rows] == ["ok", "ok"]


def test_results_may_be_missing_null_or_json_null(queue: Queue) -> None:
    claims = [states.running(queue) for _ in range(3)]
    batch("terminate_tasks", queue, claims[:2], results=[None, Jsonb(None)])
    batch("terminate_tasks", queue, claims[2:])
    query = "select jsonb_typeof(result) from sokka.all_tasks where task_id = %s"
    assert [queue.value(query, claim.task_id) for claim in claims] == [None, "null", None]


def test_extending_a_batch_never_shortens_and_tells_of_cancel_requests(queue: Queue) -> None:
    one, other = states.running(queue), states.running(queue)
    before = queue.row(one.task_id).lease_expires_at
    queue.call("cancel_task", task_id=other.task_id)
    rows = batch("extend_leases", queue, [one, other], lease="1 s")
    assert rows[0].lease_expires_at == before
    assert [row.cancel_requested for row in rows] == [False, True]


def test_extending_by_default_takes_each_topics_lease(queue: Queue, topic: str) -> None:
    queue.call("set_topic", topic=topic, lease="5 hours")
    one = states.of(queue.leased(topic, lease="1 s"))
    other = states.of(queue.leased(topic + " too", lease="1 s"))
    now = queue.value("select clock_timestamp()")
    rows = batch("extend_leases", queue, [one, other])
    seconds = [round((row.lease_expires_at - now).total_seconds()) for row in rows]
    assert seconds == [18000, 30]


@pytest.mark.parametrize("strength", ["for update", "for no key update"])
@pytest.mark.parametrize("function", ["extend_leases", "terminate_tasks", "settle_tasks"])
def test_a_member_locked_by_another_call_is_busy_and_no_loss(
    fresh: Queue, another: Callable[..., Queue], function: str, strength: str
) -> None:
    free, locked = states.running(fresh), states.running(fresh)
    options = {"verbs": ["release", "release"]} if function == "settle_tasks" else {}
    before = fresh.image(locked.task_id)
    holder = another(autocommit=False)
    holder.rows(f"select from sokka.tasks where task_id = %s {strength}", (locked.task_id,))
    rows = batch(function, fresh, [locked, free], **options)
    assert [row.verdict for row in rows] == ["55P03", "ok"]
    assert fresh.image(locked.task_id) == before
    holder.connection.rollback()
    options = {"verbs": ["release"]} if function == "settle_tasks" else {}
    assert batch(function, fresh, [locked], **options)[0].verdict == "ok"


@pytest.mark.parametrize(
    ("function", "verdict"),
    [("extend_leases", "ok"), ("terminate_tasks", "55P03"), ("settle_tasks", "55P03")],
)
def test_an_open_fence_holds_up_ends_but_not_heartbeats(
    fresh: Queue, another: Callable[..., Queue], function: str, verdict: str
) -> None:
    claim = states.running(fresh)
    fence = another(autocommit=False)
    fence.call("assert_lease", **claim.arguments())
    options = {"verbs": ["terminate"]} if function == "settle_tasks" else {}
    assert batch(function, fresh, [claim], **options)[0].verdict == verdict


def test_a_wrong_claim_on_a_locked_row_is_told_as_such(
    fresh: Queue, another: Callable[..., Queue]
) -> None:
    claim = states.running(fresh)
    holder = another(autocommit=False)
    holder.rows("select from sokka.tasks where task_id = %s for update", (claim.task_id,))
    stale = Claim(claim.task_id, claim.pid, claim.token - 1)
    assert batch("terminate_tasks", fresh, [stale])[0].verdict == "SK005"
    unknown = Claim(uuid4(), "w1", 1)
    assert batch("extend_leases", fresh, [unknown])[0].verdict == "SK001"
