"""Each example does what it says, on the interpreter's own files."""

from __future__ import annotations

import csv
import re
import signal
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from examples import leased_singleton, resumable_import, stream_restart
from sokka_pg.store import PgTaskStore
from tests.examples.conftest import DEADLINE_S, EXAMPLES, Gate, Program

Start = Callable[..., Program]
STDLIB = Path(sysconfig.get_path("stdlib"))


def test_words_are_counted_as_one_plain_count_does(start: Start) -> None:
    plain: Counter[str] = Counter()
    paths = list(STDLIB.glob("*.py"))
    for path in paths:
        plain.update(re.findall("[a-z]+", path.read_text("utf-8", "replace").lower()))
    first, *lines = start("word_count").end().splitlines()
    assert first == f"{len(paths)} files, {plain.total()} words, {len(plain)} different ones"
    found = {word: int(count) for count, word in map(str.split, lines)}
    assert found == {word: plain[word] for word in found}
    assert sorted(found.values()) == sorted(plain.values())[-10:]


def test_words_of_an_empty_folder_are_none(start: Start, tmp_path: Path) -> None:
    assert start("word_count", tmp_path).end() == "0 files, 0 words, 0 different ones\n"


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    """A CSV file with a row for each source file of the interpreter."""
    file = tmp_path / "sizes of files.csv"
    with file.open("w", newline="", encoding="utf-8") as lines:
        csv.writer(lines).writerows(
            (path.relative_to(STDLIB), path.stat().st_size)
            for path in sorted(STDLIB.rglob("*.py"))[:2_000]
        )
    return file


def test_an_import_that_is_killed_midway_brings_each_row_once(
    start: Start, gate: Gate, conn: psycopg.Connection, sizes: Path
) -> None:
    rows = [tuple(row) for row in csv.reader(sizes.read_text("utf-8").splitlines())]
    middle = len(rows) // 2
    conn.execute(resumable_import.TABLE)
    gate.close("imported", "new.name = '{}'".format(rows[middle][0].replace("'", "''")))
    first = start("resumable_import", sizes)
    gate.reached()
    first.kill()
    gate.open()
    (there,) = conn.execute("select count(*) from imported").fetchone() or (0,)
    assert 0 < there <= middle
    said = f"{len(rows)} rows imported\n"
    assert start("resumable_import", sizes).end() == said
    found = conn.execute("select name, amount::text from imported").fetchall()
    assert sorted(found) == sorted(rows)
    # Again, when all is done: nothing is left to do.
    assert start("resumable_import", sizes).end() == said
    assert conn.execute("select count(*), sum(amount) from imported").fetchone() == (
        len(rows), sum(int(amount) for _, amount in rows)
    )  # fmt: skip


def test_a_stream_is_complete_though_its_consumer_was_killed(
    start: Start, gate: Gate, conn: psycopg.Connection
) -> None:
    items = list(stream_restart.functions())
    conn.execute(stream_restart.TABLE)
    gate.close("received", f"new.seq = {len(items) // 2}")
    producer = start("stream_restart", "produce")
    stream_id = producer.line()
    first = start("stream_restart", "consume", stream_id)
    gate.reached()
    first.kill()
    gate.open()
    said = start("stream_restart", "consume", stream_id).end()
    assert said == f"the end, after item {len(items)}\n"
    assert producer.end() == ""
    found = conn.execute("select seq, file, line, name from received order by seq").fetchall()
    assert found == [
        (seq, item["file"], item["line"], item["name"]) for seq, item in enumerate(items, 1)
    ]
    # A third consumer finds the end, and nothing new.
    assert start("stream_restart", "consume", stream_id).end() == said
    assert conn.execute("select count(*) from received").fetchone() == (len(items),)


def test_of_three_replicas_one_works_and_another_takes_over_when_it_is_killed(
    start: Start, gate: Gate, conn: psycopg.Connection
) -> None:
    conn.execute(leased_singleton.TABLE)
    gate.close("squares", "new.number = 500")
    first = start("leased_singleton", 1000)
    assert first.line().startswith("holds the lock")
    others = [start("leased_singleton", 1000) for _ in range(2)]
    gate.reached()
    first.kill()
    gate.open()
    said = [other.end() for other in others]
    assert all(text.startswith("holds the lock") for text in said)
    found = conn.execute("select number, square from squares order by number").fetchall()
    assert found == [(number, number**2) for number in range(1, 1001)]
    # One after the other, and tokens only rose.
    holders = conn.execute(
        "select process, token, min(number), max(number), count(*) from squares"
        " group by process, token order by token"
    ).fetchall()
    assert holders[0][0] == first.process.pid
    assert holders[0][3] in (499, 500)
    assert all(last - least + 1 == count for _, _, least, last, count in holders)
    assert [holder[2] for holder in holders] == sorted(holder[2] for holder in holders)
    # Once all is written, a replica that comes late has nothing left to do.
    start("leased_singleton", 1000).end()
    assert conn.execute("select count(*) from squares").fetchone() == (1000,)


def test_a_report_is_made_by_the_clock_of_the_day_before(
    start: Start, db: str, conn: psycopg.Connection
) -> None:
    with PgTaskStore(db) as store:
        store.create_tasks([{"topic": "mail"}] * 3 + [{"topic": "sms"}])
        for topic in ("mail", "sms"):
            task = store.reserve_task(topic, "somebody")
            assert task is not None
            store.terminate(task)
        here = "select (now() at time zone 'Europe/Berlin')::date"
        (today,) = conn.execute(here).fetchone() or ()
        replicas = [start("nightly_report") for _ in range(2)]
        planned = eventually(lambda: store.schedule("report"))
        assert planned.schedule == "TZ=Europe/Berlin 0 0 2 * * *"
        # It is tomorrow, between two in the night and two in the next one.
        conn.execute(
            "create or replace function sokka.clock() returns timestamptz language sql"
            " as $$ select clock_timestamp() + interval '26 hours' $$"
        )
        fired = "select task_id, fire_at from sokka.fired_ticks"
        task_id, fire_at = eventually(lambda: conn.execute(fired).fetchone())
        made = eventually(lambda: (found := store.task(task_id)) and found.status.final and found)
    assert fire_at.astimezone(ZoneInfo("Europe/Berlin")).hour == 2
    assert made.result == today.isoformat()
    found = conn.execute("select topic, event, events from reports order by 1, 2").fetchall()
    assert found == [
        ("mail", "created", 3), ("mail", "reserved", 1), ("mail", "terminated", 1),
        ("sms", "created", 1), ("sms", "reserved", 1), ("sms", "terminated", 1),
    ]  # fmt: skip
    assert conn.execute(fired).rowcount == 1
    for replica in replicas:
        replica.process.send_signal(signal.SIGTERM)
        replica.process.communicate(timeout=DEADLINE_S)
        assert replica.process.returncode == 0


def eventually(look: Callable[[], Any]) -> Any:
    """The first true answer of ``look``."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    return found


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'start("{path.stem}"' in text, path.name
