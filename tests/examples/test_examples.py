"""Each example does what it says, on the interpreter's own files."""

from __future__ import annotations

import csv
import re
import sysconfig
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from examples import leased_singleton, resumable_import, stream_restart
from tests.examples.conftest import EXAMPLES, Gate, Program

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


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'start("{path.stem}"' in text, path.name
