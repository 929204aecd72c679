"""What a failover lost is told from the old primary's log, and from nothing else."""

from __future__ import annotations

import pytest

from tests.faults.chaos import accounting
from tests.faults.chaos.words import Change, Loss, from_json, to_json

DUMP_15 = """\
rmgr: Transaction len (rec/tot):     34/    34, tx:        748, lsn: 0/03014F60, prev 0/03014F28, desc: COMMIT 2026-11-30 07:52:11.106207 UTC
rmgr: Transaction len (rec/tot):     34/    34, tx:        749, lsn: 0/03015010, prev 0/03014FD0, desc: ABORT 2026-11-30 07:52:11.107207 UTC
rmgr: Transaction len (rec/tot):    405/   405, tx:        750, lsn: 0/03015A68, prev 0/03015A28, desc: COMMIT 2026-11-30 07:52:11.113 UTC; subxacts: 751 752; inval msgs: catcache 80 catcache 79 relcache 1213
rmgr: Transaction len (rec/tot):     66/    66, tx:          0, lsn: 0/03015B00, prev 0/03015A68, desc: COMMIT_PREPARED 753: 2026-11-30 07:52:11.2 UTC
rmgr: XLOG        len (rec/tot):     30/    30, tx:        754, lsn: 0/03015B90, prev 0/03015B00, desc: NEXTOID COMMIT 1
"""  # noqa: E501
DUMP_18 = """\
rmgr: Transaction len (rec/tot):     46/    46, tx:     1000, lsn: A/FF014F60, prev A/FF014F28, desc: COMMIT 2026-11-30 07:52:11.106207 UTC; origin: node 1, lsn 0/0, at 2026-11-30 07:52:11.1 UTC
"""  # noqa: E501
OVER_15 = "pg_waldump: error: error in WAL record at 0/3015B00: invalid record length at 0/3015B90: wanted 24, got 0\n"  # noqa: E501
OVER_18 = "pg_waldump: error: error in WAL record at 0/3015B00: invalid record length at 0/3015B90: expected at least 24, got 0\n"  # noqa: E501
HISTORY = """\
1\t0/3000148\tno recovery target specified

# a comment
2\tA/ff0000a0\tbefore 2026-11-30 07:52:11.106207+00
"""


def row(xid: str, pos: int = 1) -> Change:
    return Change(pos, 5, xid, 7, "0/0", "claim", "tasks", None, {"id": "t"})


def loss(*rows: Change, **commits: str) -> Loss:
    return Loss(
        "async", "0/3015A68", 1, {name.lstrip("x"): at for name, at in commits.items()}, list(rows)
    )


def test_the_commits_are_those_of_the_log_by_the_start_of_their_records() -> None:
    assert accounting.commits(DUMP_15) == {
        "748": "0/03014F60", "750": "0/03015A68", "753": "0/03015B00",
    }
    assert accounting.commits(DUMP_18) == {"1000": "A/FF014F60"}
    assert accounting.commits("") == {}


def test_positions_compare_as_numbers_and_not_as_text() -> None:
    assert accounting.lsn("0/03015A68") == accounting.lsn("0/3015a68") == 0x3015A68
    assert accounting.lsn("A/1") > accounting.lsn("9/FFFFFFFF")
    assert accounting.lsn("10/0") > accounting.lsn("9/0")


def test_the_end_of_the_log_is_no_trouble_and_anything_else_is() -> None:
    assert accounting.ended_well(OVER_15) and accounting.ended_well(OVER_18)
    assert accounting.ended_well("")
    assert accounting.ended_well("first record is after 0/1000000, at 0/1000028, skipping 40\n")
    assert not accounting.ended_well('pg_waldump: error: could not open directory "x"\n')
    assert not accounting.ended_well(OVER_15 + "pg_waldump: error: out of memory\n")


def test_a_history_tells_of_each_switch_the_last_is_where_its_own_timeline_begins() -> None:
    assert accounting.switches(HISTORY) == [
        accounting.Switch(1, "0/3000148"), accounting.Switch(2, "A/FF0000A0"),
    ]
    assert accounting.history_file(26) == "0000001A.history"
    with pytest.raises(ValueError, match="no line of a timeline history"):
        accounting.switches("nonsense\n")


def test_the_log_of_a_timeline_is_read_from_its_oldest_segment() -> None:
    names = [
        "00000001000000000000000A", "000000020000000A000000FF", "000000020000000B00000001",
        "00000002.history", "000000020000000A000000FE.partial", "archive_status",
    ]
    size = 16 << 20
    assert accounting.first_segment(names, 2, size) == "A/FF000000"
    assert accounting.first_segment(names, 1, size) == "0/A000000"
    assert accounting.first_segment(names, 3, size) is None


def test_a_commit_at_the_switch_is_lost_and_one_before_it_is_kept() -> None:
    found = loss(**{f"x{xid}": at for xid, at in accounting.commits(DUMP_15).items()})
    assert accounting.lost_xids(found) == {"750", "753"}


def test_rows_that_took_a_lost_position_and_xid_again_are_others() -> None:
    old = [accounting.key(1, 10, "700"), accounting.key(2, 20, "701"), accounting.key(3, 30, "702")]
    new = [accounting.key(1, 10, "700"), accounting.key(2, 99, "701")]
    assert accounting.lacking(old, new) == [2, 3]
    assert accounting.lacking(old, old) == []


def test_a_row_may_be_gone_only_if_its_commit_was_not_replayed() -> None:
    assert accounting.contradictions(loss(row("750"), x750="0/03015A68", x748="0/3014F60")) == []
    assert accounting.contradictions(loss(row("748"), row("748", 2), x748="0/3014F60")) == [
        "2 rows of xid 748 are gone: it committed at 0/3014F60, before the switch at 0/3015A68"
    ]
    assert accounting.contradictions(loss(row("9"))) == [
        "1 rows of xid 9 are gone, and it has no commit record"
    ]


def test_workers_must_be_at_it_again_soon_after_a_promotion() -> None:
    found = loss()
    found.promoted_s, found.resumed_s = 0.3, 9.9
    assert accounting.contradictions(found) == []
    found.resumed_s = 10.1
    assert accounting.contradictions(found) == ["workers were at work again after 10.1 s"]
    found.resumed_s = None
    assert accounting.contradictions(found) == ["workers were at work again never"]


def test_a_loss_can_be_kept_and_read_again() -> None:
    made = loss(row("750"), x750="0/03015A68")
    made.resumed, made.promoted_s = {"w1": 1.5}, 0.25
    assert from_json(Loss, to_json(made)) == made
