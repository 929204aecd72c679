"""settle_tasks, exchange_work and its other forms: each member by its own verb, one commit
for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.brief import spelled_out
from tests.sql import states
from tests.sql.calling import Queue, Row
from tests.sql.states import ERROR, WRONG_STATES, Claim

LEASE = {
    "settle_and_reserve": "to_jsonb(r.lease)",
    **dict.fromkeys(("exchange_leases", "exchange_work"), """
        case when r.verdict = 'reserved' then to_jsonb(r) - array['ord', 'verdict', 'detail'] end
    """),
}  # fmt: skip
"""Forms of one answer: a lease as a value, or as columns; a row for each settlement, or one
for those of which there is nothing to say."""
SETTLED = """
    select r.ord, r.task_id, r.verdict, r.detail, {lease} as lease
      from sokka.{function}(%(pid)s, %(ids)s, %(tokens)s, %(verbs)s, %(args)s,
           %(topics)s, %(max)s, %(lease)s, %(limits)s) r
"""
VERBS: list[tuple[str, Any, str]] = [
    ("terminate", Jsonb({"n": 1}), "terminated"),
    ("terminate", None, "terminated"),
    ("fail", Jsonb(ERROR), "failed"),
    ("retry", Jsonb({"error": ERROR, "delay": 60}), "failed"),
    ("snooze", Jsonb(60), "snoozed"),
    ("snooze", Jsonb("PT1M"), "snoozed"),
    ("snooze", Jsonb(0), "starting"),
    ("release", None, "starting"),
]


def settle(queue: Queue, members: list[tuple[Claim, str, Any]]) -> list[Row]:
    rows = queue.call(
        "settle_tasks",
        pid="w1",
        task_ids=[claim.task_id for claim, _, _ in members],
        tokens=[claim.token for claim, _, _ in members],
        verbs=[verb for _, verb, _ in members],
        args=[argument for _, _, argument in members],
    )
    return sorted(rows, key=lambda row: row.ord)


@pytest.fixture(params=LEASE)
def both(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exchange(queue: Queue, function: str, **given: Any) -> list[Row]:
    names = ("pid", "ids", "tokens", "verbs", "args", "topics", "max", "lease", "limits")
    query = SETTLED.format(function=function, lease=LEASE[function])
    rows = queue.rows(query, dict.fromkeys(names) | {"pid": "w1"} | given)
    if function != "exchange_work":
        return rows
    told = spelled_out([vars(row) for row in rows], given.get("ids") or [])
    return [Row(**{"lease": None} | row) for row in told]


def test_what_was_accepted_and_needs_no_word_is_counted(queue: Queue, topic: str) -> None:
    claims = [states.running(queue) for _ in range(4)]
    stale = replace(states.running(queue), token=1)
    members = [claims[0], stale, *claims[1:], claims[1]]
    verbs = ["terminate"] * 6
    for last, told in (("terminate", 4), ("release", 3)):
        with queue.connection.transaction(force_rollback=True):
            verbs[4] = last
            rows = queue.rows(
                "select ord, verdict, detail ->> 'status' as status from sokka.exchange_work("
                "'w1', %s, %s, %s, null, array[%s], 0)",
                ([c.task_id for c in members], [c.token for c in members], verbs, topic),
            )  # fmt: skip
            assert (rows[0].ord, rows[0].verdict, rows[0].status) == (told, "settled", None)
            others = {row.ord: (row.verdict, row.status) for row in rows[1:]}
            expected = {2: ("SK005", "running"), 6: ("SK002", "terminated")}
            if last == "release":
                expected[5] = ("ok", "starting")
            assert others == expected


def test_of_an_empty_half_nothing_is_said(queue: Queue, topic: str) -> None:
    settled = queue.rows(
        "select ord, verdict from sokka.exchange_work('w1', '{}', '{}', '{}', null, array[%s], 1)",
        (topic,),
    )
    assert [(row.ord, row.verdict) for row in settled] == [(0, "settled")]
    assert exchange(queue, "exchange_work", topics=[topic], max=1) == []


def test_each_member_is_settled_by_its_own_verb(queue: Queue) -> None:
    members = [(states.running(queue), verb, argument) for verb, argument, _ in VERBS]
    rows = settle(queue, members)
    assert [row.ord for row in rows] == list(range(1, len(VERBS) + 1))
    assert [row.verdict for row in rows] == ["ok"] * len(VERBS)
    for row, (claim, verb, _), (_, _, left) in zip(rows, members, VERBS, strict=True):
        found = queue.row(claim.task_id)
        assert (row.task_id, found.status) == (claim.task_id, left)
        if verb != "terminate":
            assert (row.detail["status"], row.detail["record_ver"]) == (left, found.record_ver)
    assert queue.row(members[0][0].task_id).result == {"n": 1}
    assert queue.row(members[2][0].task_id).error == ERROR


def test_a_retry_within_its_limit_sleeps_for_the_delay(queue: Queue, topic: str) -> None:
    lease = queue.leased(topic, max_attempts=3)
    settle(queue, [(states.of(lease), "retry", Jsonb({"error": ERROR, "delay": "PT1H"}))])
    row = queue.row(lease.task_id)
    assert (row.status, row.failures, row.error) == ("snoozed", 1, ERROR)
    assert (row.run_at - row.updated_at).total_seconds() == 3600


@pytest.mark.parametrize(("verb", "argument", "left"), VERBS, ids=str)
def test_members_without_a_live_newest_lease_are_refused_one_by_one(
    queue: Queue, verb: str, argument: Any, left: str
) -> None:
    claims = [state(queue) for state in WRONG_STATES]
    before = [queue.image(claim.task_id) for claim in claims]
    right = states.running(queue)
    rows = settle(queue, [(claim, verb, argument) for claim in [*claims, right]])
    assert [row.verdict for row in rows] == [*WRONG_STATES.values(), "ok"]
    for row, claim in zip(rows, claims, strict=False):
        assert row.detail["expected"]["token"] == claim.token
    assert [queue.image(claim.task_id) for claim in claims] == before
    assert queue.row(right.task_id).status == left


@pytest.mark.parametrize(
    ("verb", "argument"),
    [("fail", None), ("fail", Jsonb("x")), ("fail", Jsonb(None)), ("retry", None),
     ("retry", Jsonb({})), ("retry", Jsonb({"error": ERROR, "delay": -1})),
     ("retry", Jsonb({"error": ERROR, "delay": "soon"})), ("snooze", None),
     ("snooze", Jsonb(None)), ("snooze", Jsonb(-1)), ("snooze", Jsonb("later")),
     ("snooze", Jsonb({})), ("snooze", Jsonb(True)), ("snooze", Jsonb(1e300))],
    ids=str,
)  # fmt: skip
def test_a_wrong_argument_of_one_member_is_its_own_verdict(
    queue: Queue, verb: str, argument: Any
) -> None:
    bad, good = states.running(queue), states.running(queue)
    before = queue.image(bad.task_id)
    rows = settle(queue, [(bad, verb, argument), (good, "release", None)])
    assert [row.verdict for row in rows] == ["22023", "ok"]
    assert rows[0].detail["argument"] in ("error", "delay", "snooze")
    assert queue.image(bad.task_id) == before


@pytest.mark.parametrize("verb", ["terminate", "fail", "release", "snooze", "retry"])
def test_a_task_named_twice_is_settled_once(queue: Queue, verb: str) -> None:
    arguments = {verb: argument for verb, argument, _ in VERBS}
    claim = states.running(queue)
    rows = settle(queue, [(claim, verb, arguments[verb]), (claim, verb, arguments[verb])])
    assert rows[0].verdict == "ok"
    assert rows[1].verdict in ("SK002", "SK006")


def test_one_call_settles_the_last_batch_and_reserves_the_next(
    queue: Queue, both: str, topic: str
) -> None:
    old = states.running(queue)
    ids = [queue.create(topic, data=Jsonb(n)) for n in range(3)]
    rows = exchange(
        queue, both, ids=[old.task_id], tokens=[old.token], verbs=["terminate"], args=[Jsonb(1)],
        topics=[topic], max=2, lease="1 hour",
    )  # fmt: skip
    assert [(row.ord, row.task_id, row.verdict) for row in rows] == [
        (1, old.task_id, "ok"), (None, ids[0], "reserved"), (None, ids[1], "reserved"),
    ]  # fmt: skip
    assert rows[0].lease is None
    for row in rows[1:]:
        found = queue.row(row.task_id)
        assert row.lease["token"] == found.token
        assert (found.status, found.pid) == ("running", "w1")


def test_either_half_may_be_empty(queue: Queue, both: str, topic: str) -> None:
    claim = states.running(queue)
    (settled,) = exchange(
        queue, both, ids=[claim.task_id], tokens=[claim.token], verbs=["release"]
    )
    assert (settled.verdict, settled.lease) == ("ok", None)
    task_id = queue.create(topic)
    (reserved,) = exchange(
        queue, both, ids=[], tokens=[], verbs=[], args=[], topics=[topic], max=5
    )
    assert (reserved.task_id, reserved.verdict) == (task_id, "reserved")
    assert exchange(queue, both) == []
    assert exchange(queue, both, topics=[topic], max=0) == []


def test_a_task_released_in_the_call_may_be_reserved_by_it(
    queue: Queue, both: str, topic: str
) -> None:
    lease = queue.leased(topic)
    rows = exchange(
        queue, both, ids=[lease.task_id], tokens=[lease.token], verbs=["release"],
        topics=[topic], max=1,
    )  # fmt: skip
    assert [row.verdict for row in rows] == ["ok", "reserved"]
    assert rows[1].lease["token"] > lease.token


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": []}, {"tokens": None}, {"verbs": None}, {"verbs": ["stop"]}, {"args": []},
     {"topics": [None]}, {"lease": "0"}, {"limits": [1, 2]}, {"pid": None}, {"max": 10001}],
    ids=str,
)  # fmt: skip
def test_a_wrong_argument_of_either_half_settles_and_reserves_nothing(
    queue: Queue, both: str, topic: str, wrong: dict[str, Any]
) -> None:
    claim = states.running(queue)
    waiting = queue.create(topic)
    before = [queue.image(claim.task_id), queue.image(waiting)]
    given: dict[str, Any] = {
        "pid": "w1", "ids": [claim.task_id], "tokens": [claim.token], "verbs": ["release"],
        "args": [None], "topics": [topic], "max": 1, "lease": "1 s", "limits": None,
    }  # fmt: skip
    names = {"ids": "task_ids", "max": "max_tasks"}
    arguments = {names.get(name, name): value for name, value in (given | wrong).items()}
    assert queue.refused(both, **arguments).sqlstate == "22023"
    assert [queue.image(claim.task_id), queue.image(waiting)] == before
