"""Call builders: what they refuse without a database, and what they send."""

from __future__ import annotations

import inspect
import math
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from sokka_pg import calls
from sokka_pg.calls import Grant, arguments, statement
from sokka_pg.calls.repeating import MOST_CONFLICTS, Tries
from sokka_pg.errors import (
    AlreadyDone,
    BadArgument,
    DatabaseUnavailable,
    LeaseExpired,
    TaskAlreadyExists,
    TaskCancelled,
    TaskConcurrentlyUpdated,
    TaskFailed,
    TransactionConflict,
)
from sokka_pg.model import Lease, RetryPolicy, Settlement
from sokka_pg.store import PgTaskStore, TaskStore
from sokka_pg.store_async import AsyncPgTaskStore, AsyncTaskStore

LEASE = Lease(UUID(int=7), "w1", 5)


@pytest.mark.parametrize(
    ("topic", "options", "argument"),
    [
        ("", {}, "topic"),
        ("  \t", {}, "topic"),
        ("x" * 201, {}, "topic"),
        ("a\x00b", {}, "topic"),
        ("a\nb", {}, "topic"),
        ("a\x85b", {}, "topic"),
        ("\ud800", {}, "topic"),
        (None, {}, "topic"),
        (b"topic", {}, "topic"),
        ("t", {"kind": ""}, "kind"),
        ("t", {"sub_topic": "\x7f"}, "sub_topic"),
        ("t", {"task_id": "no uuid"}, "task_id"),
        ("t", {"task_id": 5}, "task_id"),
        ("t", {"task_group_id": "1%27--"}, "task_group_id"),
        ("t", {"priority": 10}, "priority"),
        ("t", {"priority": -1}, "priority"),
        ("t", {"priority": True}, "priority"),
        ("t", {"priority": 5.0}, "priority"),
        ("t", {"priority": "5"}, "priority"),
        ("t", {"run_at": datetime(2026, 3, 8, 2, 30)}, "run_at"),
        ("t", {"run_at": "2026-03-08T02:30:00Z"}, "run_at"),
        ("t", {"expires_at": datetime(9999, 1, 1, tzinfo=UTC)}, "expires_at"),
        ("t", {"max_attempts": -1}, "max_attempts"),
        ("t", {"max_attempts": 2**31}, "max_attempts"),
        ("t", {"max_losses": 1.5}, "max_losses"),
        ("t", {"timeout": 0}, "timeout"),
        ("t", {"timeout": math.nan}, "timeout"),
        ("t", {"timeout": "5s"}, "timeout"),
        ("t", {"unique_key": ""}, "unique_key"),
        ("t", {"unique_key": "é" * 300}, "unique_key"),
        ("t", {"unique_key": "k" * 10_000}, "unique_key"),
        ("t", {"unique_key": 5}, "unique_key"),
        ("t", {"headers": {"a": 1}}, "headers"),
        ("t", {"headers": ["a"]}, "headers"),
        ("t", {"headers": {"a": "x" * 70_000}}, "headers"),
        ("t", {"on_conflict": "ignore"}, "on_conflict"),
        ("t", {"parent_task_id": "no uuid"}, "parent_task_id"),
        ("t", {"colour": "red"}, "colour"),
        ("t", {"data": {"a": math.nan}}, "data"),
    ],
)
def test_a_bad_argument_of_create_task_is_named(
    topic: Any, options: dict[str, Any], argument: str
) -> None:
    with pytest.raises(BadArgument) as refused:
        calls.create_task(topic, **options)
    assert refused.value.detail["argument"] == argument
    with pytest.raises(BadArgument) as refused:
        calls.create_tasks([{"topic": "fine"}, {"topic": topic, **options}])
    assert refused.value.detail["argument"] == argument
    assert refused.value.detail["position"] == 2
    assert refused.value.message.startswith(f"specs[2].{argument}")


@pytest.mark.parametrize(
    "specs", [None, "abc", {"topic": "t"}, [5], [{}], [{"topic": "t"}] * 10_001]
)
def test_a_batch_that_is_none_is_refused(specs: Any) -> None:
    with pytest.raises(BadArgument):
        calls.create_tasks(specs)


def test_only_what_was_said_of_a_task_is_sent() -> None:
    call = calls.create_task("t", {"a": 1}, priority=0, timeout=timedelta(seconds=1.5), kind="k")
    assert call.params == {
        "topic": "t", "data": '{"a": 1}', "kind": "k", "priority": "0", "timeout": "PT1.500000S"
    }  # fmt: skip
    sql = call.statement.text("queue_2", "%({})s")
    assert "from queue_2.create_task(p_topic => cast(cast(%(topic)s as text) as text)" in sql
    assert "*" not in sql


def test_a_retry_policy_travels_in_seconds() -> None:
    call = calls.create_task("t", retry=RetryPolicy(3, timedelta(seconds=2)))
    assert '"initial": 2.0' in (call.params["retry"] or "")


@pytest.mark.parametrize("schema", ["", "My", "a b", "1a", "a" * 41, 'a"b', "é", "x;--", None, 5])
def test_a_schema_that_may_not_stand_in_sql_is_refused(schema: Any) -> None:
    with pytest.raises(BadArgument):
        calls.clock().statement.text(schema, "%({})s")
    with pytest.raises(BadArgument):
        PgTaskStore("postgresql://localhost/x", schema)


def test_user_text_never_stands_in_sql() -> None:
    hostile = "'; drop table x;-- %s {0} \\ $$"
    call = calls.reserve_tasks([hostile], hostile, 5)
    assert "drop" not in call.statement.text("sokka", "%({})s")
    assert call.params["topics"] == '{"' + hostile.replace("\\", "\\\\") + '"}'


@pytest.mark.parametrize(
    "given",
    [
        LEASE,
        (UUID(int=7), "w1", 5),
        (str(UUID(int=7)), "w1", 5),
    ],
)
def test_a_lease_may_be_spelled_in_several_ways(given: Any) -> None:
    found = arguments.proof(given)
    assert (found.task_id, found.pid, found.token) == (UUID(int=7), "w1", 5)
    assert arguments.proof(UUID(int=7), "w1", 5) == LEASE


@pytest.mark.parametrize(
    "given",
    [
        (LEASE, {"result": 1}),
        (UUID(int=7),),
        (UUID(int=7), "w1"),
        (None, "w1", 5),
        (UUID(int=7), "", 5),
        (UUID(int=7), "w1", True),
        (UUID(int=7), "w1", 2**63),
        (UUID(int=7), "w1", "5"),
        ((UUID(int=7), "w1"),),
    ],
)
def test_a_lease_that_proves_nothing_is_refused(given: Any) -> None:
    with pytest.raises(BadArgument):
        calls.terminate(arguments.proof(*given))


@pytest.mark.parametrize(
    "settlement",
    [
        Settlement(UUID(int=7), 5, "terminated"),
        Settlement(UUID(int=7), 5, "terminate", math.nan),
        Settlement(UUID(int=7), 5, "fail", None),
        Settlement(UUID(int=7), 5, "retry", "just text"),
        Settlement(UUID(int=7), 5, "retry", {"error": "e", "delay": -1}),
        Settlement(UUID(int=7), 5, "snooze", None),
        Settlement(UUID(int=7), 5, "snooze", math.inf),
        Settlement(UUID(int=7), 5, "release", 5),
        Settlement(UUID(int=7), 5, "wait", None),
        Settlement(UUID(int=7), 5, "wait", "no uuid"),
        Settlement("no uuid", 5, "release"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_member_refuses_the_whole_settlement(settlement: Settlement) -> None:
    with pytest.raises(BadArgument):
        calls.settle_tasks("w1", [settlement])


@pytest.mark.parametrize("topics", [[], "t", None, ["t"] * 1_001, [None], ["ok", ""], {"t": 1}])
def test_reserving_needs_the_names_of_its_topics(topics: Any) -> None:
    with pytest.raises(BadArgument, match="topics"):
        calls.reserve_tasks(topics, "w1")
    with pytest.raises(BadArgument, match="topics"):
        calls.mark_idle(topics, "w1", 1)


@pytest.mark.parametrize("most", [0, -1, 10_001, True, 1.0, None])
def test_reserving_needs_a_number_of_tasks(most: Any) -> None:
    with pytest.raises(BadArgument, match="max_tasks"):
        calls.reserve_tasks(["t"], "w1", most)


@pytest.mark.parametrize(
    ("resource", "token"), [("", 1), ("é" * 501, 1), (None, 1), ("r", -1), ("r", 2**63), ("r", "1")]
)
def test_a_fence_needs_a_name_and_a_token(resource: Any, token: Any) -> None:
    with pytest.raises(BadArgument):
        calls.advance_fence(resource, token)


@pytest.mark.parametrize("retention", [0, 3_599, timedelta(hours=876_001), math.nan])
def test_a_retention_out_of_bounds_is_refused(retention: Any) -> None:
    with pytest.raises(BadArgument, match="retention"):
        calls.set_topic("t", retention=retention)


@pytest.mark.parametrize("limits", [[1], [1, 2, 3], [-1, 1], [True, 1], "ab"])
def test_limits_must_match_the_topics(limits: Any) -> None:
    with pytest.raises(BadArgument):
        calls.reserve_tasks(["a", "b"], "w1", 5, limits=limits)


@pytest.mark.parametrize(
    "filters",
    [{"colour": 1}, {"status": "done"}, {"status": ["running", 5]}, {"from": datetime(2026, 1, 1)}],
)
def test_an_unknown_filter_is_named(filters: Any) -> None:
    with pytest.raises(BadArgument, match="filters"):
        calls.list_tasks(filters)


def test_an_array_literal_keeps_quotes_backslashes_and_nulls() -> None:
    assert statement.array_text(['a"b', "c\\d", "{,}", "NULL", None]) == (
        '{"a\\"b","c\\\\d","{,}","NULL",NULL}'
    )


# Fan-outs, steps, streams, watching


def test_only_what_was_said_of_a_fan_out_is_sent() -> None:
    call = calls.fan_out([{"topic": "t"}], parent=LEASE, deadline=timedelta(seconds=2), kind=None)
    assert call.params == {
        "specs": '[{"topic":"t"}]', "policy": "settled", "deadline": "PT2S",
        "parent_task_id": str(LEASE.task_id), "pid": "w1", "token": "5",
    }  # fmt: skip
    sql = call.statement.text("queue_2", "%({})s")
    assert "from queue_2.fan_out(p_specs => cast(cast(%(specs)s as text) as jsonb)" in sql


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"policy": "most"}, "policy"),
        ({"policy": None, "needed": 1}, "needed"),
        ({"policy": "quorum"}, "needed"),
        ({"policy": "quorum", "needed": 3}, "needed"),
        ({"policy": "quorum", "needed": -1}, "needed"),
        ({"policy": "quorum", "needed": True}, "needed"),
        ({"policy": "all", "needed": 1}, "needed"),
        ({"max_running": 0}, "max_running"),
        ({"max_running": 10_001}, "max_running"),
        ({"deadline": -1}, "deadline"),
        ({"deadline": math.nan}, "deadline"),
        ({"task_id": "no uuid"}, "task_id"),
        ({"topic": ""}, "topic"),
        ({"kind": "\n"}, "kind"),
        ({"sub_topic": ""}, "sub_topic"),
        ({"data": math.inf}, "data"),
        ({"priority": 10}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"headers": {"a": 1}}, "headers"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"parent": UUID(int=7)}, "lease"),
        ({"parent": (UUID(int=7), "", 5)}, "pid"),
        ({"run_at": datetime(2026, 3, 8, tzinfo=UTC)}, "run_at"),
    ],
)
def test_a_bad_argument_of_fan_out_is_named(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(BadArgument) as refused:
        calls.fan_out([{"topic": "t"}, {"topic": "t"}], **options)
    assert refused.value.detail["argument"] == argument


@pytest.mark.parametrize(
    "spec",
    [
        {"run_at": datetime(2026, 3, 8, tzinfo=UTC)},
        {"unique_key": "k"},
        {"on_conflict": "error"},
        {"parent_task_id": UUID(int=7)},
        {"task_group_id": UUID(int=7)},
        {"colour": "red"},
    ],
)
def test_what_its_candidates_may_not_say_is_named_with_its_position(spec: Any) -> None:
    with pytest.raises(BadArgument) as refused:
        calls.fan_out([{"topic": "t"}, {"topic": "t", **spec}])
    assert refused.value.detail["position"] == 2
    assert refused.value.message.startswith(f"specs[2].{min(spec)}")


@pytest.mark.parametrize("items", ["abc", None, {"a": 1}, [], [1] * 1_001, [1, math.nan], [b""]])
def test_items_that_no_stream_can_hold_are_refused(items: Any) -> None:
    with pytest.raises(BadArgument) as refused:
        calls.append_stream(LEASE, items)
    assert refused.value.detail["argument"].startswith("items")


def test_the_numbers_of_streams_trees_and_results_have_bounds() -> None:
    for build in (
        lambda bad: calls.open_stream(UUID(int=7), bad),
        lambda bad: calls.open_stream(UUID(int=7), 1, bad),
        lambda bad: calls.read_stream(UUID(int=7), 0, bad),
        lambda bad: calls.read_stream(UUID(int=7), 0, 1, bad),
        lambda bad: calls.join_results(UUID(int=7), 0, bad),
        lambda bad: calls.task_tree(UUID(int=7), bad),
        lambda bad: calls.task_tree(UUID(int=7), 1, bad),
    ):
        for bad in (0, -1, True, 1.5, None, 2**63):
            with pytest.raises(BadArgument):
                build(bad)


def test_a_step_needs_a_name_and_a_value_that_json_can_hold() -> None:
    for name, value in (("", 1), ("a\nb", 1), (None, 1), ("n" * 201, 1), ("n", math.nan)):
        with pytest.raises(BadArgument):
            calls.record_step(LEASE, name, value)  # type: ignore[arg-type]
    assert calls.record_step(LEASE, "n", None).params["value"] == "null"


def test_the_hash_of_a_task_is_that_of_its_lower_case_text() -> None:
    task_id = UUID("ABCDEF01-2345-6789-ABCD-EF0123456789")
    assert calls.task_hash(task_id) == "25665271"


def test_a_failure_tells_its_code_and_whether_it_was_a_cancellation() -> None:
    boom = TaskFailed.of(UUID(int=7), {"code": "boom", "message": "it broke", "retryable": True})
    assert (type(boom), boom.code, boom.failure["retryable"]) == (TaskFailed, "boom", True)
    assert "it broke" in str(boom)
    again = pickle.loads(pickle.dumps(boom))
    assert (again.failure, again.message) == (boom.failure, boom.message)
    assert type(TaskFailed.of(UUID(int=7), {"code": "cancelled"})) is TaskCancelled
    assert TaskFailed.of(UUID(int=7), None).code == "error"


# Repeating


def lost(sent: bool = True) -> DatabaseUnavailable:
    return DatabaseUnavailable("gone", {"sent": sent})


def test_a_call_is_repeated_once_where_that_is_safe() -> None:
    tries = Tries(calls.terminate(LEASE))
    assert tries.wait_after(lost()) == 0
    with pytest.raises(DatabaseUnavailable):
        tries.wait_after(lost())


@pytest.mark.parametrize(
    "call",
    [
        calls.create_task("t"),
        calls.create_tasks([{"topic": "t", "task_id": uuid4()}]),
        calls.reserve_task("t", "w1"),
        calls.settle_and_reserve("w1", [], ["t"]),
        calls.retry(LEASE, "e"),
        calls.snooze(LEASE, 1),
        calls.wait_for_task(LEASE, UUID(int=8)),
        calls.fan_out([]),
        calls.append_stream(LEASE, [1]),
        calls.release_lease(LEASE),
        calls.resubmit(uuid4()),
        calls.cancel(uuid4()),
        calls.revoke_lease(uuid4(), 1),
    ],
    ids=lambda call: call.statement.source,
)
def test_a_call_that_could_act_twice_is_not_repeated(call: calls.Call[Any]) -> None:
    assert not call.repeatable
    with pytest.raises(DatabaseUnavailable):
        Tries(call).wait_after(lost())


def test_nothing_is_repeated_that_was_never_sent() -> None:
    with pytest.raises(DatabaseUnavailable):
        Tries(calls.terminate(LEASE)).wait_after(lost(sent=False))


def test_the_doubt_about_the_first_try_outlives_a_second_that_was_never_sent() -> None:
    tries = Tries(calls.terminate(LEASE))
    tries.wait_after(lost())
    with pytest.raises(DatabaseUnavailable) as told:
        tries.wait_after(lost(sent=False))
    assert told.value.detail["sent"] is True


def test_a_refused_repeat_is_success_only_if_it_shows_our_own_hand() -> None:
    ours = {"pid": "w1", "token": 5, "status": "terminated"}
    for detail, accepted in (
        (ours, True),
        ({**ours, "token": 6}, False),
        ({**ours, "pid": "w2"}, False),
        ({**ours, "status": "failed"}, False),
    ):
        tries = Tries(calls.terminate(LEASE))
        tries.wait_after(lost())
        if accepted:
            assert tries.wait_after(AlreadyDone("done", detail)) == 0
            assert tries.call.statement.source == "get_task"
        else:
            with pytest.raises(AlreadyDone):
                tries.wait_after(AlreadyDone("done", detail))


def test_items_that_were_appended_unheard_are_known_by_the_number_of_the_last() -> None:
    for last_seq, accepted in ((7, False), (8, True), (10, True), (11, False), (None, False)):
        tries = Tries(calls.append_stream(LEASE, ["a", "b", "c"], after=7))
        tries.wait_after(lost())
        refused = TaskConcurrentlyUpdated("other", {"last_seq": last_seq})
        if not accepted:
            with pytest.raises(TaskConcurrentlyUpdated):
                tries.wait_after(refused)
            continue
        assert tries.wait_after(refused) == 0
        assert tries.call.statement.source == "get_stream"
        row = [LEASE.task_id, "running", last_seq, 4, 5, 100, last_seq - 4, 120, None]
        appended = tries.call.decode([row])
        assert (appended.accepted, appended.last_seq) == (last_seq - 7, last_seq)
        assert (appended.free_items, appended.free_bytes) == (max(0, 9 - last_seq), 0)


def test_a_fan_out_with_an_id_is_repeated() -> None:
    assert Tries(calls.fan_out([], task_id=UUID(int=7))).wait_after(lost()) == 0


def test_a_failure_that_is_not_ours_is_no_success_of_ours() -> None:
    failed = {"pid": "w1", "token": 5, "status": "failed"}
    for code, accepted in (("boom", True), ("lease_lost", False), ("cancelled", False)):
        tries = Tries(calls.fail(LEASE, {"code": "boom", "message": "m"}))
        tries.wait_after(lost())
        refused = AlreadyDone("done", {**failed, "error_code": code})
        if accepted:
            assert tries.wait_after(refused) == 0
        else:
            with pytest.raises(AlreadyDone):
                tries.wait_after(refused)


def test_a_refusal_without_a_lost_answer_is_no_success() -> None:
    with pytest.raises(AlreadyDone):
        Tries(calls.terminate(LEASE)).wait_after(
            AlreadyDone("done", {"pid": "w1", "token": 5, "status": "terminated"})
        )
    with pytest.raises(TaskAlreadyExists):
        Tries(calls.create_task("t", task_id=uuid4())).wait_after(TaskAlreadyExists("there"))


def test_a_lease_that_expired_meanwhile_is_told_as_it_is() -> None:
    tries = Tries(calls.extend_lease(LEASE))
    tries.wait_after(lost())
    with pytest.raises(LeaseExpired):
        tries.wait_after(LeaseExpired("over"))


def test_conflicts_are_repeated_with_growing_waits_and_then_told() -> None:
    tries = Tries(calls.create_task("t"))
    waits = [tries.wait_after(TransactionConflict("40001")) for _ in range(MOST_CONFLICTS)]
    assert all(0 < wait <= 0.5 for wait in waits)
    with pytest.raises(TransactionConflict):
        tries.wait_after(TransactionConflict("40001"))


# Sync and async are twins


def public(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def signature(function: Any) -> tuple[list[tuple[str, Any, Any]], str]:
    found = inspect.signature(function)
    parameters = [(p.name, p.kind, p.annotation) for p in found.parameters.values()]
    defaults = [p.default for p in found.parameters.values()]
    return parameters, f"{defaults} -> {found.return_annotation}"


@pytest.mark.parametrize("other", [PgTaskStore, AsyncTaskStore, AsyncPgTaskStore])
def test_every_store_has_the_verbs_of_the_protocol_with_the_same_signatures(other: type) -> None:
    promised, offered = public(TaskStore), public(other)
    assert offered.keys() == promised.keys()
    for name, function in promised.items():
        if name == "transaction":
            found, expected = signature(offered[name])[0], signature(function)[0]
            assert found == expected
            continue
        assert signature(offered[name]) == signature(function), name
        is_async = inspect.iscoroutinefunction(offered[name])
        assert is_async == other.__name__.startswith("Async"), name


def reserved(token: int) -> tuple[Any, ...]:
    fields = {"token": token}
    return (None, "reserved", None, *(fields.get(name) for name in Grant._fields))


SETTLED: list[tuple[str, list[tuple[Any, ...]], list[str]]] = [
    ("all", [(3, "settled", None)], ["ok", "ok", "ok"]),
    ("one not", [(2, "settled", None), (2, "SK005", {})], ["ok", "SK005", "ok"]),
    ("none", [(0, "settled", None), (3, "a", {}), (1, "b", {}), (2, "c", {})], ["b", "c", "a"]),
    ("too few told", [(1, "settled", None), (2, "SK005", {})], ["55P03", "SK005", "55P03"]),
    ("nothing told", [(0, "settled", None)], ["55P03"] * 3),
]


@pytest.mark.parametrize("grants", [0, 1, 5])
@pytest.mark.parametrize(
    ("rows", "verdicts"), [case[1:] for case in SETTLED], ids=[case[0] for case in SETTLED]
)
def test_settlements_of_which_nothing_is_said_were_accepted_if_the_count_says_so(
    rows: list[tuple[Any, ...]], verdicts: list[str], grants: int
) -> None:
    call = calls.exchange(
        "w", [(UUID(int=n), n) for n in range(3)], ["terminate"] * 3, [None] * 3, {}
    )
    nulls = (None,) * len(Grant._fields)
    answer = [row + nulls for row in rows] + [reserved(n) for n in reversed(range(grants))]
    found = call.decode(answer)
    assert [verdict for verdict, _ in found.verdicts] == verdicts
    assert [grant.token for grant in found.grants] == [*range(grants)]
