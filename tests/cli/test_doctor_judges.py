"""The doctor's judgement is arithmetic on rows: no server needed."""

from __future__ import annotations

from typing import Any

import pytest

from sokka_pg import migrate
from sokka_pg.doctor import Level, schema_findings
from sokka_pg.doctor.examination import OF_THE_QUEUE, OF_THE_SERVER
from sokka_pg.errors import UnexpectedDatabaseError

CHECKS = {check.name: check for check in (*OF_THE_SERVER, *OF_THE_QUEUE)}


def levels(check: str, *rows: dict[str, Any]) -> list[Level]:
    return [found.level for found in CHECKS[check].findings(rows)]


@pytest.mark.parametrize(
    ("number", "level"),
    [
        (130_022, Level.FAIL), (140_000, Level.OK), (180_006, Level.OK), (190_000, Level.WARN),
    ],
)  # fmt: skip
def test_versions_14_to_18_are_supported(number: int, level: Level) -> None:
    assert levels("server version", {"number": number, "text": "x"}) == [level]


def test_a_standby_is_no_place_for_a_queue() -> None:
    assert levels("primary", {"standby": True}) == [Level.FAIL]


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("fsync", "off", Level.FAIL), ("full_page_writes", "off", Level.FAIL),
        ("autovacuum", "off", Level.FAIL), ("track_counts", "off", Level.FAIL),
        ("track_activities", "off", Level.WARN), ("synchronous_commit", "off", Level.WARN),
        ("synchronous_commit", "remote_apply", Level.OK), ("synchronous_commit", "local", Level.OK),
        ("default_transaction_isolation", "serializable", Level.WARN),
    ],
)  # fmt: skip
def test_a_dangerous_setting_is_told(name: str, value: str, level: Level) -> None:
    assert levels("settings", {"name": name, "setting": value}) == [level]


@pytest.mark.parametrize(
    ("used", "of_role", "level"),
    [
        (10, -1, Level.OK), (80, -1, Level.WARN), (95, -1, Level.FAIL), (10, 10, Level.FAIL),
        (0, 0, Level.FAIL),
    ],
)  # fmt: skip
def test_connections_are_counted_against_the_smallest_limit(
    used: int, of_role: int, level: Level
) -> None:
    row = {
        "max_connections": 100, "reserved": 3, "of_database": -1, "of_role": of_role,
        "used": used, "ours": 1,
    }  # fmt: skip
    assert levels("connections", row) == [level]


def test_a_pooler_shows_by_the_process_id_it_made_up() -> None:
    assert levels("pooler", {"announced_pid": 7, "backend_pid": 4711}) == [Level.WARN]
    assert levels("pooler", {"announced_pid": 7, "backend_pid": 7}) == [Level.OK]


@pytest.mark.parametrize(
    ("seconds", "level"), [(299, Level.OK), (300, Level.WARN), (3600, Level.FAIL)]
)
def test_old_snapshots_get_worse_with_age(seconds: float, level: Level) -> None:
    session = {
        "pid": 1, "application_name": "", "backend_type": "client backend", "state": None,
        "seconds": seconds,
    }  # fmt: skip
    assert levels("old snapshots", session) == [level]
    assert levels("prepared transactions", {"gid": "x", "seconds": seconds}) == [level]


def test_slots_without_reader_or_far_behind_are_told() -> None:
    slot = {"slot_name": "s", "active": True, "xmin_age": None, "kept_bytes": 0.0}
    assert levels("replication slots", slot) == [Level.OK]
    idle = {**slot, "active": False, "kept_bytes": None}
    assert levels("replication slots", idle) == [Level.WARN]
    assert levels("replication slots", {**slot, "xmin_age": 2**30}) == [Level.WARN]


def test_a_full_notification_queue_is_told() -> None:
    def of(usage: float) -> list[Level]:
        return levels("notifications", {"queue_usage": usage, "notify": True})

    assert [of(0.1), of(0.6), of(0.95)] == [[Level.OK], [Level.WARN], [Level.FAIL]]


def test_tokens_above_what_json_holds_or_ahead_of_the_clock_are_told() -> None:
    row = {"last_token": 10, "now_us": 2 * 10**15, "highest_seen": None}
    assert levels("tokens", row) == [Level.OK]
    assert levels("tokens", {**row, "highest_seen": 11}) == [Level.FAIL]
    assert levels("tokens", {**row, "last_token": 3 * 10**15}) == [Level.WARN]
    assert levels("tokens", {**row, "last_token": 2**53 + 1}) == [Level.WARN, Level.WARN]


def test_a_prepared_fence_has_no_session_to_end_and_fails() -> None:
    row = {"task_id": "t", "backend_pid": None, "application_name": None, "open_s": None}
    assert levels("open fences", row) == [Level.FAIL]


def test_a_lease_held_for_days_and_many_dead_rows_are_told() -> None:
    old = {"held": 1, "oldest_s": 200_000.0, "oldest_task": "t"}
    assert levels("leases", old) == [Level.WARN]
    rows = {"name": "tasks", "live": 1_000, "vacuumed": None}
    assert levels("dead rows", {**rows, "dead": 60_000}) == [Level.WARN]
    assert levels("dead rows", {**rows, "dead": 4_000}) == [Level.OK]


def test_a_schema_that_could_not_be_compared_is_a_warning() -> None:
    def of(found: Any) -> list[Level]:
        return [finding.level for finding in schema_findings(found)]

    assert of(migrate.Check("sokka", "0001", "0001", ())) == [Level.OK]
    assert of(migrate.Check("sokka", "0001", "0001", None)) == [Level.WARN]
    assert of(UnexpectedDatabaseError("read-only")) == [Level.WARN]
    assert of(migrate.Check("sokka", None, "0001", None)) == [Level.FAIL]
