"""The ten audit queries of docs/sql.md tell the truth about a database that was lived in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.docs.blocks import ROOT, Block, blocks
from tests.docs.history import Life

QUERIES = [b for b in blocks(ROOT / "docs" / "sql.md") if b.heading[:1].isdigit()]
Rows = list[Any]


@pytest.fixture
def life(db: str) -> Iterator[Life]:
    found = Life(db)
    found.live()
    yield found
    found.close()


def the_lost_and_found(rows: Rows, life: Life) -> None:
    # The poison task was lost last: twice, and then it failed.
    assert [row.event for row in rows] == [
        "created", "reserved", "lease_lost", "reserved", "lease_lost", "failed",
    ]  # fmt: skip
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1].detail["error"]["code"] == "lease_lost"


def those_with_several_leases(rows: Rows, life: Life) -> None:
    several = ("retried", "lost and found", "poison", "given back")
    assert {row.task_id for row in rows} == {life.tasks[name] for name in several}
    assert all(row.tokens == sorted(row.tokens) for row in rows)
    assert (rows[0].task_id, rows[0].leases) == (life.tasks["given back"], 3)


def nothing(rows: Rows, life: Life) -> None:
    assert rows == []


def every_way_to_fail(rows: Rows, life: Life) -> None:
    found = {(row.topic, row.code): row.tasks for row in rows}
    assert found == {
        ("mail", "boom"): 2, ("mail", "cancelled"): 2,
        ("reports", "expired"): 1, ("reports", "lease_lost"): 1,
    }  # fmt: skip


def both_topics(rows: Rows, life: Life) -> None:
    mail, reports = sorted(rows, key=lambda row: row.topic)
    assert (mail.starting, mail.running, mail.snoozed, mail.paused) == (3, 1, 1, False)
    assert (reports.starting, reports.paused) == (0, True)
    assert mail.oldest_ready_for.total_seconds() > 0 and reports.oldest_ready_for is None


def all_workers(rows: Rows, life: Life) -> None:
    found = {row.pid: row for row in rows}
    assert set(found) == {"w1", "w2", "w3"}
    assert (found["w1"].lost, found["w2"].lost, found["w3"].lost) == (2, 1, 0)
    assert (found["w3"].leases, found["w3"].terminated) == (1, 1)


def those_that_ended_well(rows: Rows, life: Life) -> None:
    (mail,) = rows
    assert (mail.topic, mail.kind, mail.tasks) == ("mail", "send", 5)
    assert mail.waited_median.total_seconds() >= 0 and mail.worked_p95.total_seconds() > 0


def every_act(rows: Rows, life: Life) -> None:
    assert [row.action for row in rows] == ["pause", "resubmit", "cancel", "cancel", "revoke"]
    assert [row.reason for row in rows][:2] == ["printer broken", "mended"]
    assert [row.status_now for row in rows] == [None, "failed", "failed", "failed", "starting"]
    assert rows[3].error_code == "cancelled"


EXPECTED: dict[str, Callable[[Rows, Life], None]] = {
    "1": the_lost_and_found, "2": those_with_several_leases, "3": nothing, "4": nothing,
    "5": nothing, "6": every_way_to_fail, "7": both_topics, "8": all_workers,
    "9": those_that_ended_well, "10": every_act,
}  # fmt: skip


def number(query: Block) -> str:
    return query.heading.partition(".")[0]


def asked(url: str, query: Block) -> Rows:
    with psycopg.connect(url, autocommit=True, row_factory=namedtuple_row) as connection:
        return connection.execute(query.text.encode()).fetchall()


def test_there_are_ten_of_them() -> None:
    assert [number(query) for query in QUERIES] == list(EXPECTED)


def test_each_says_what_was_lived(db: str, life: Life) -> None:
    for query in QUERIES:
        EXPECTED[number(query)](asked(db, query), life)


def test_the_proofs_find_what_is_wrong(db: str, life: Life) -> None:
    # A history that no verb can make, written past the guards.
    task_id = life.tasks["lost and found"]
    forge = """
        insert into sokka.past_leases (task_id, topic, event, pid, attempt, token,
                                       leased_at, ended_at, reserved_seq, ended_seq)
        select %(id)s, 'mail', 'released', 'ghost', 1, 1, now(), ended_at, seq, seq + 1
          from (values (now() + interval '1 hour', 90), (now(), 92)) forged (ended_at, seq)
    """
    life.connection.execute(forge, {"id": task_id})
    for query in QUERIES[2:5]:
        found = asked(db, query)
        assert {row.task_id for row in found} == {task_id}, query.heading
