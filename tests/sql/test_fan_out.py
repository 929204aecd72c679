"""fan_out: a join and its children, made in one call by whoever may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import FAR, children, fan_out, join, lease, proof, specs, statuses, succeed

Another = Callable[..., Queue]
NULLS = ["parent_task_id", "pid", "token"]


def tasks(queue: Queue) -> int:
    """All rows that a fan-out could have left, anywhere."""
    return int(
        queue.value(
            "select (select count(*) from sokka.tasks) + (select count(*) from sokka.joins)"
            " + (select count(*) from sokka.given_ids) + (select count(*) from sokka.join_inbox)"
            " + (select count(*) from sokka.finished_tasks)"
        )
    )


# What is made


def test_a_fan_out_makes_a_join_that_sleeps_and_children_that_are_ready(fresh: Queue) -> None:
    made = fresh.one("fan_out", specs=specs(3), priority=2, data=Jsonb("why"))
    assert (made.status, made.total, made.created) == ("snoozed", 3, True)
    row = fresh.row(made.task_id)
    assert (row.status, row.kind, row.topic, row.sub_topic) == ("snoozed", "join", "c", "default")
    assert (row.priority, row.data, row.depth, row.parent_task_id) == (2, "why", 0, None)
    assert fresh.value("select %s::timestamptz = %s::timestamptz", row.run_at, FAR)
    assert statuses(fresh, made.task_id) == ["starting"] * 3
    for place, task_id in enumerate(children(fresh, made.task_id), 1):
        child = fresh.row(task_id)
        assert (child.candidate, child.data, child.depth) == (place, place, 1)
        assert child.parent_task_id == child.task_group_id == made.task_id


def test_a_join_says_how_it_stands(fresh: Queue) -> None:
    join_id = fan_out(fresh, 5, policy="quorum", needed=2, max_running=3, deadline="1 hour")
    found = join(fresh, join_id)
    assert (found.task_id, found.parent_task_id, found.policy) == (join_id, None, "quorum")
    assert (found.needed, found.total, found.max_running, found.in_flight) == (2, 5, 3, 3)
    assert (found.done, found.succeeded, found.failed, found.late) == (0, 0, 0, 0)
    assert (found.state, found.outcome, found.decided_at) == ("open", None, None)
    assert (found.deadline_at - found.created_at).total_seconds() == pytest.approx(3600, abs=1)
    assert fresh.rows("select * from sokka.fan_outs") == [found]
    assert fresh.call("get_join", task_id=uuid4()) == []


@pytest.mark.parametrize(("policy", "needed"), [
    ("settled", 0), ("all", 4), ("any", 1), ("first_success", 1),
])  # fmt: skip
def test_a_policy_says_how_many_successes_it_needs(
    fresh: Queue, policy: str, needed: int
) -> None:
    assert join(fresh, fan_out(fresh, 4, policy=policy)).needed == needed


def test_the_topic_of_a_join_is_that_of_its_first_candidate(fresh: Queue) -> None:
    mixed = Jsonb([{"topic": "first"}, {"topic": "second"}])
    assert fresh.row(fresh.one("fan_out", specs=mixed).task_id).topic == "first"
    assert fresh.row(fresh.one("fan_out", specs=mixed, topic="own").task_id).topic == "own"
    assert fresh.row(fan_out(fresh, 0)).topic == "fan-out"


def test_a_candidate_is_a_task_with_options_of_its_own(fresh: Queue) -> None:
    task_id = uuid4()
    spec = {
        "topic": "own", "kind": "k", "sub_topic": "s", "task_id": str(task_id), "priority": 0,
        "data": {"a": 1}, "headers": {"h": "1"}, "timeout": "PT5S", "max_losses": 1,
        "expires_at": "2999-01-01T00:00:00Z", "retry": {"max_attempts": 7, "initial": 3},
    }  # fmt: skip
    fresh.one("fan_out", specs=Jsonb([spec]))
    row = fresh.row(task_id)
    assert (row.topic, row.kind, row.sub_topic, row.priority) == ("own", "k", "s", 0)
    assert (row.data, row.headers, row.max_losses) == ({"a": 1}, {"h": "1"}, 1)
    assert (row.timeout.total_seconds(), row.max_attempts, row.retry["initial"]) == (5, 7, 3)
    assert row.expires_at.year == 2999
    assert fresh.refused("create_task", topic="t", task_id=task_id).sqlstate == "SK008"


def test_what_is_said_of_the_join_stands_on_its_task(fresh: Queue) -> None:
    made = fresh.one(
        "fan_out", specs=specs(1), kind="sum", topic="t", sub_topic="s", data=Jsonb([1]),
        priority=9, retry={"initial": 2, "max_attempts": 4}, timeout="7 s", headers={"a": "b"},
    )  # fmt: skip
    row = fresh.row(made.task_id)
    assert (row.kind, row.topic, row.sub_topic, row.data, row.priority) == (
        "sum", "t", "s", [1], 9,
    )  # fmt: skip
    assert (row.max_attempts, row.retry["initial"], row.headers) == (4, 2, {"a": "b"})
    assert row.timeout.total_seconds() == 7
    made = fresh.one("fan_out", specs=specs(1), retry={"max_attempts": 4}, max_attempts=2)
    assert fresh.row(made.task_id).max_attempts == 2


def test_a_worker_is_handed_whose_candidate_it_has(fresh: Queue) -> None:
    join_id = fan_out(fresh, 2)
    first = fresh.reserve("c")
    assert (first.parent_task_id, first.candidate) == (join_id, 1)
    second = fresh.one("reserve_tasks", topics=["c"], pid="w", max_tasks=9)
    assert (second.parent_task_id, second.candidate) == (join_id, 2)
    fresh.verb("release_lease", first)
    assert lease(fresh, first.task_id).candidate == 1
    plain = fresh.leased("t")
    assert (plain.parent_task_id, plain.candidate) == (None, None)


def test_neither_a_join_nor_a_held_child_is_ever_handed_out(fresh: Queue, clock: Clock) -> None:
    join_id = fan_out(fresh, 3, max_running=1, topic="c")
    first = fresh.reserve("c", lease="1 year")
    held = children(fresh, join_id)[1:]
    assert fresh.call("reserve_tasks", topics=["c"], pid="w", max_tasks=100) == []
    for task_id in (join_id, *held):
        assert fresh.refused("acquire_lease", task_id=task_id, pid="w").sqlstate == "SK010"
    clock.advance("300 days")
    swept = fresh.one("sweep")
    assert (swept.woken, swept.taken_back, swept.expired) == (0, 0, 0)
    assert fresh.call("reserve_tasks", topics=["c"], pid="w", max_tasks=100) == []
    assert fresh.row(first.task_id).status == "running"


def test_what_waits_for_others_is_not_due_at_any_time(fresh: Queue, clock: Clock) -> None:
    fan_out(fresh, 2, max_running=1)
    assert fresh.one("sweep").next_due_at is None
    assert [row.next_due_at for row in fresh.rows("select * from sokka.topic_stats")] == [None]
    at = clock.now()
    fresh.verb("snooze_task", fresh.leased("t"), snooze="1 hour")
    due = fresh.one("sweep").next_due_at
    assert 3599 < (due - at).total_seconds() < 3700


def test_a_sweep_looks_again_when_the_next_deadline_passes(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    fan_out(fresh, 1, deadline="2 hours")
    fan_out(fresh, 1, deadline="1 hour")
    assert (fresh.one("sweep").next_due_at - now).total_seconds() == 3600


def test_the_history_of_a_candidate_tells_whose_it_is(fresh: Queue) -> None:
    parent = fresh.leased("t")
    join_id = fan_out(fresh, 1, **proof(parent))
    (child,) = children(fresh, join_id)
    (created,) = fresh.history(child)
    assert created.detail["parent_task_id"] == str(join_id)
    assert created.detail["candidate"] == 1
    (created,) = fresh.history(join_id)
    assert created.detail["parent_task_id"] == str(parent.task_id)
    assert "candidate" not in created.detail


def test_null_is_as_good_as_no_argument(fresh: Queue) -> None:
    optional = (
        "needed", "max_running", "deadline", "task_id", "topic", "kind", "data", "sub_topic",
        "parent_task_id", "pid", "token", "priority", "retry", "timeout", "headers",
        "max_attempts",
    )  # fmt: skip
    given, plain = (
        fresh.one("fan_out", specs=specs(2), **options)
        for options in (dict.fromkeys(optional), {})
    )
    own = {"task_id", "task_group_id", "created_at", "updated_at"}
    for look in (fresh.row, lambda task_id: join(fresh, task_id)):
        one, two = (vars(look(made.task_id)) for made in (given, plain))
        assert {k: v for k, v in one.items() if k not in own} == {
            k: v for k, v in two.items() if k not in own
        }


def test_a_join_and_its_children_are_one_group(fresh: Queue) -> None:
    join_id = fan_out(fresh, 3)
    succeed(fresh, children(fresh, join_id)[0])
    rows = fresh.call("list_group", task_group_id=join_id)
    assert {row.task_id for row in rows} == {join_id, *children(fresh, join_id)}


# Bounds


def test_ten_thousand_candidates_are_taken_and_one_more_is_refused(fresh: Queue) -> None:
    made = fresh.one("fan_out", specs=specs(10_000), max_running=1)
    assert made.total == 10_000
    assert fresh.value("select count(*) from sokka.tasks where status = 'starting'") == 1
    before = tasks(fresh)
    found = fresh.refused("fan_out", specs=specs(10_001))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "specs")
    assert tasks(fresh) == before


@pytest.mark.parametrize("key", [
    "run_at", "unique_key", "on_conflict", "task_group_id", "parent_task_id",
])  # fmt: skip
def test_a_candidate_may_not_say_what_its_join_says(fresh: Queue, key: str) -> None:
    given = {"run_at": "2030-01-01T00:00:00Z", "on_conflict": "existing"}
    bad = {"topic": "c", key: given.get(key, str(uuid4()))}
    found = fresh.refused("fan_out", specs=Jsonb([{"topic": "c"}, bad]))
    assert (found.sqlstate, found.detail["position"]) == ("22023", 2)
    assert tasks(fresh) == 0
    assert fresh.one("fan_out", specs=Jsonb([{"topic": "c", key: None}])).created


BAD_SPECS: list[Any] = [
    1, "a", None, [], {}, {"topic": 7}, {"topic": "c", "kind": ""}, {"topic": "c", "odd": 1},
    {"topic": "c", "priority": 10}, {"topic": "c", "task_id": "x"},
    {"topic": "c", "max_attempts": -1}, {"topic": "c", "timeout": "0"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_SPECS, ids=str)
def test_one_bad_candidate_refuses_all_and_is_named_by_its_place(fresh: Queue, bad: Any) -> None:
    for place in (1, 3):
        given = [{"topic": "c"}] * (place - 1) + [bad]
        found = fresh.refused("fan_out", specs=Jsonb(given), task_id=uuid4())
        assert (found.sqlstate, found.detail["position"]) == ("22023", place), found
    assert tasks(fresh) == 0


def test_two_candidates_with_one_id_are_refused(fresh: Queue) -> None:
    spec = {"topic": "c", "task_id": str(uuid4())}
    assert fresh.refused("fan_out", specs=Jsonb([spec, spec])).sqlstate == "SK008"
    assert tasks(fresh) == 0


def test_a_candidate_whose_id_is_in_use_refuses_the_fan_out(fresh: Queue) -> None:
    used = fresh.create("t")
    before = tasks(fresh)
    found = fresh.refused("fan_out", specs=Jsonb([{"topic": "c", "task_id": str(used)}]))
    assert found.sqlstate == "SK008"
    assert tasks(fresh) == before


@pytest.mark.parametrize("total", [0, 1, 3])
def test_a_quorum_lies_from_none_to_all_of_the_candidates(fresh: Queue, total: int) -> None:
    for needed in range(total + 1):
        assert fresh.one("fan_out", specs=specs(total), policy="quorum", needed=needed).created
    for needed in (-1, total + 1, None):
        found = fresh.refused("fan_out", specs=specs(total), policy="quorum", needed=needed)
        assert (found.sqlstate, found.detail["argument"]) == ("22023", "needed")


@pytest.mark.parametrize("policy", ["settled", "all", "any", "first_success"])
def test_only_a_quorum_says_how_many_it_needs(fresh: Queue, policy: str) -> None:
    found = fresh.refused("fan_out", specs=specs(3), policy=policy, needed=1)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "needed")


# Depth


def nested(queue: Queue, levels: int) -> Row:
    """A running task that stands so deep: fan-outs below one another."""
    held = queue.leased("top")
    while queue.row(held.task_id).depth < levels:
        join_id = fan_out(queue, 1, **proof(held))
        held = lease(queue, children(queue, join_id)[0])
    return held


def test_fan_outs_below_one_another_go_as_deep_as_the_settings_say(fresh: Queue) -> None:
    fresh.execute("update sokka.settings set max_depth = 4")
    held = nested(fresh, 4)
    assert fresh.row(held.task_id).depth == 4
    before = tasks(fresh)
    found = fresh.refused("fan_out", specs=specs(1), **proof(held))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "parent_task_id")
    assert tasks(fresh) == before


def test_a_join_at_the_last_level_has_no_room_for_children(fresh: Queue) -> None:
    fresh.execute("update sokka.settings set max_depth = 3")
    held = nested(fresh, 2)
    before = tasks(fresh)
    found = fresh.refused("fan_out", specs=specs(1), **proof(held))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "parent_task_id")
    assert tasks(fresh) == before
    assert fresh.one("fan_out", specs=specs(0), **proof(held)).status == "terminated"


def test_sixteen_levels_are_allowed_where_nobody_says_otherwise(fresh: Queue) -> None:
    assert fresh.value("select max_depth from sokka.settings") == 16
    held = nested(fresh, 16)
    assert fresh.refused("fan_out", specs=specs(1), **proof(held)).sqlstate == "22023"
    with pytest.raises(psycopg.errors.CheckViolation):
        fresh.execute("update sokka.settings set max_depth = 0")


# The parent's lease

@pytest.mark.parametrize("state", states.WRONG_STATES, ids=lambda state: state.__name__)
def test_a_parent_without_its_live_newest_lease_fans_out_nothing(
    fresh: Queue, state: states.State
) -> None:
    claim = state(fresh)
    before = fresh.image(claim.task_id), tasks(fresh)
    found = fresh.refused(
        "fan_out", specs=specs(2), task_id=uuid4(), parent_task_id=claim.task_id, pid=claim.pid,
        token=claim.token,
    )  # fmt: skip
    assert found.sqlstate == states.WRONG_STATES[state]
    assert (fresh.image(claim.task_id), tasks(fresh)) == before


@pytest.mark.parametrize("left_out", [
    given for n in range(1, 8) if (given := [name for i, name in enumerate(NULLS) if n >> i & 1])
    and len(given) < 3
], ids=" ".join)  # fmt: skip
def test_part_of_a_parents_proof_is_none(fresh: Queue, left_out: list[str]) -> None:
    held = fresh.leased("t")
    before = tasks(fresh)
    arguments = proof(held) | dict.fromkeys(left_out)
    found = fresh.refused("fan_out", specs=specs(1), **arguments)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "parent_task_id")
    assert tasks(fresh) == before


def test_a_parent_that_is_asked_to_stop_may_still_fan_out(fresh: Queue) -> None:
    held = fresh.leased("t")
    fresh.one("cancel_task", task_id=held.task_id)
    assert fresh.one("fan_out", specs=specs(1), **proof(held)).created


def test_a_fan_out_leaves_its_parent_as_it_was(fresh: Queue) -> None:
    held = fresh.leased("t")
    before = fresh.row(held.task_id)
    fan_out(fresh, 3, **proof(held))
    assert fresh.row(held.task_id) == before


# The same fan-out again


@pytest.mark.parametrize("finished", [False, True], ids=["live", "finished"])
@pytest.mark.parametrize("parented", [False, True], ids=["alone", "below a parent"])
def test_a_fan_out_repeated_by_its_id_is_the_same_one(
    fresh: Queue, finished: bool, parented: bool
) -> None:
    held = proof(fresh.leased("t")) if parented else {}
    join_id = uuid4()
    first = fresh.one("fan_out", specs=specs(2), task_id=join_id, **held)
    assert (first.task_id, first.created) == (join_id, True)
    if finished:
        succeed(fresh, *children(fresh, join_id))
    before, image = tasks(fresh), fresh.image(join_id)
    # Whatever it says of itself: what was made first is what there is.
    for again in (specs(2), specs(7)):
        row = fresh.one("fan_out", specs=again, task_id=join_id, policy="all", **held)
        assert (row.task_id, row.total, row.created) == (join_id, 2, False)
        assert row.status == ("terminated" if finished else "snoozed")
    assert (tasks(fresh), fresh.image(join_id)) == (before, image)


def test_a_join_of_another_parent_is_not_the_one(fresh: Queue) -> None:
    one, two = fresh.leased("t"), fresh.leased("t")
    join_id = fan_out(fresh, 1, task_id=uuid4(), **proof(one))
    alone = fan_out(fresh, 1, task_id=uuid4())
    before = tasks(fresh)
    for task_id, held in ((join_id, proof(two)), (join_id, {}), (alone, proof(one))):
        found = fresh.refused("fan_out", specs=specs(1), task_id=task_id, **held)
        assert (found.sqlstate, found.detail["task_id"]) == ("SK008", str(task_id))
    assert tasks(fresh) == before


@pytest.mark.parametrize("state", [states.starting, states.running, states.terminated])
def test_a_task_that_is_no_join_is_not_the_one(fresh: Queue, state: states.State) -> None:
    used = state(fresh).task_id
    before = fresh.image(used), tasks(fresh)
    assert fresh.refused("fan_out", specs=specs(1), task_id=used).sqlstate == "SK008"
    assert (fresh.image(used), tasks(fresh)) == before


def test_a_repeat_needs_the_parents_lease_too(fresh: Queue) -> None:
    held = fresh.leased("t")
    join_id = fan_out(fresh, 1, task_id=uuid4(), **proof(held))
    fresh.verb("release_lease", held)
    found = fresh.refused("fan_out", specs=specs(1), task_id=join_id, **proof(held))
    assert found.sqlstate == "SK006"
    again = fresh.reserve("t")
    assert fresh.one("fan_out", specs=specs(1), task_id=join_id, **proof(again)).created is False


def test_a_fan_out_that_rolls_back_leaves_its_id_free(fresh: Queue) -> None:
    join_id = uuid4()
    with fresh.connection.transaction(force_rollback=True):
        fan_out(fresh, 3, task_id=join_id)
    assert tasks(fresh) == 0
    assert fresh.one("fan_out", specs=specs(3), task_id=join_id).created


# Isolation


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_fan_out_without_a_parent_works_under_an_old_snapshot(
    fresh: Queue, another: Another, isolation: str
) -> None:
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    waiting, empty = fan_out(caller, 2), fan_out(caller, 0)
    caller.connection.commit()
    assert statuses(fresh, waiting) == ["starting"] * 2
    assert fresh.row(empty).status == "terminated"
    succeed(fresh, *children(fresh, waiting))
    assert fresh.row(waiting).status == "terminated"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_parents_lease_is_not_proven_under_an_old_snapshot(
    fresh: Queue, another: Another, isolation: str
) -> None:
    held = fresh.leased("t")
    before = tasks(fresh)
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    assert caller.refused("fan_out", specs=specs(1), **proof(held)).sqlstate == "25001"
    caller.connection.commit()
    assert tasks(fresh) == before


def test_a_join_is_not_resubmitted_and_a_candidate_is_nobodys_child_then(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1)
    (child,) = children(fresh, join_id)
    assert fresh.refused("resubmit_task", task_id=join_id).sqlstate == "SK006"
    succeed(fresh, child)
    before = tasks(fresh)
    found = fresh.refused("resubmit_task", task_id=join_id)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "task_id")
    assert tasks(fresh) == before
    again: UUID = fresh.one("resubmit_task", task_id=child).task_id
    row = fresh.row(again)
    assert (row.parent_task_id, row.candidate, row.depth) == (None, None, 0)
    done = join(fresh, join_id)
    succeed(fresh, again)
    assert join(fresh, join_id) == done
