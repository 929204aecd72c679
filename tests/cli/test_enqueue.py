"""``sokka enqueue`` stores what was said, or nothing."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from sokka_pg.store import PgTaskStore
from tests.cli.conftest import Sokka


def count(conn: psycopg.Connection) -> int:
    return conn.execute("select count(*) from sokka.tasks").fetchone()[0]  # type: ignore[index]


def test_prints_the_id_of_the_task_alone(sokka: Sokka, db: str) -> None:
    answer = sokka("enqueue", "mail", "--data", '{"to": "ann"}')
    assert (answer.code, answer.err) == (0, "")
    with PgTaskStore(db) as store:
        task = store.task(answer.out.strip())
    assert task is not None
    assert (task.topic, task.data, task.kind, task.priority) == (
        "mail", {"to": "ann"}, "default", 5,
    )  # fmt: skip


def test_every_option_reaches_the_task(sokka: Sokka, db: str) -> None:
    task_id, group = uuid.uuid4(), uuid.uuid4()
    answer = sokka(
        "enqueue", "mail", "--data", "-", "--kind", "send", "--sub-topic", "bulk",
        "--task-id", task_id, "--group", group, "--priority", 0, "--run-at",
        "2999-01-01T00:00+02:00", "--max-attempts", 4, "--retry", '{"initial": "5s"}',
        "--timeout", "90s", "--expires-at", "2999-02-01T00:00Z", "--unique-key", "k",
        "--on-conflict", "error", "--header", "a=1", "--header", "b=2", "--json",
        given="[1, null]",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.json["task_id"] == str(task_id)
    assert answer.json["created"] is True
    assert answer.json["status"] == "snoozed"
    with PgTaskStore(db) as store:
        task = store.task(task_id)
    assert task is not None
    assert (task.data, task.kind, task.sub_topic, task.task_group_id) == (
        [1, None], "send", "bulk", group,
    )  # fmt: skip
    assert (task.priority, task.max_attempts, task.unique_key) == (0, 4, "k")
    assert task.timeout == timedelta(seconds=90)
    assert task.headers == {"a": "1", "b": "2"}
    assert task.retry["initial"] == 5
    assert task.run_at.isoformat() == "2998-12-31T22:00:00+00:00"


def test_a_delay_is_added_to_the_clock_of_the_database(
    sokka: Sokka, conn: psycopg.Connection
) -> None:
    conn.execute(
        "create or replace function sokka.clock() returns timestamptz language sql"
        " as $$ select timestamptz '2040-01-01 00:00+00' $$"
    )
    answer = sokka("enqueue", "mail", "--delay", "1h30m", "--json")
    assert answer.json["run_at"] == "2040-01-01T01:30:00+00:00"


def test_a_taken_unique_key_returns_its_holder_and_says_so(sokka: Sokka) -> None:
    first = sokka("enqueue", "mail", "--unique-key", "k")
    second = sokka("enqueue", "mail", "--unique-key", "k")
    assert (second.code, second.out) == (0, first.out)
    assert "nothing created" in second.err
    third = sokka("enqueue", "mail", "--unique-key", "k", "--on-conflict", "error")
    assert third.code == 1
    assert first.out.strip() in third.err


def test_an_id_in_use_is_refused(sokka: Sokka) -> None:
    task_id = uuid.uuid4()
    assert sokka("enqueue", "mail", "--task-id", task_id).code == 0
    again = sokka("enqueue", "mail", "--task-id", task_id, "--json")
    assert again.code == 1
    assert again.json["error"]["type"] == "TaskAlreadyExists"
    assert again.json["error"]["detail"]["task_id"] == str(task_id)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["mail", "--data", "{"], "--data"),
        (["mail", "--data", "@"], "--data"),
        (["mail", "--data", r'"\u0000"'], "data"),
        (["mail", "--data", r'"\ud800"'], "data"),
        (["mail", "--data", "1e999"], "data"),
        (["mail", "--run-at", "2030-01-01T00:00"], "--run-at"),
        (["mail", "--delay", "-1"], "--delay"),
        (["mail", "--delay", "20000d"], "--delay"),
        (["mail", "--delay", "1s", "--run-at", "2030-01-01T00:00Z"], "--delay"),
        (["mail", "--task-id", "0197"], "--task-id"),
        (["mail", "--group", "x"], "--group"),
        (["mail", "--priority", "10"], "priority"),
        (["mail", "--max-attempts", "-1"], "max_attempts"),
        (["mail", "--retry", '{"jitter": 2}'], "retry.jitter"),
        (["mail", "--timeout", "0"], "timeout"),
        (["mail", "--header", "x"], "--header"),
        (["mail", "--on-conflict", "maybe"], "on_conflict"),
        (["mail", "--unique-key", ""], "unique_key"),
        ([""], "topic"),
        (["   "], "topic"),
        (["a\nb"], "topic"),
        (["x" * 201], "topic"),
        ([], "TOPIC"),
        (["--bulk", "nowhere.jsonl"], "--bulk"),
        (["--bulk", "x", "--data", "1"], "--data"),
        (["--bulk", "x", "--unique-key", "k"], "--unique-key"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_stored(
    sokka: Sokka, conn: psycopg.Connection, args: list[str], named: str
) -> None:
    answer = sokka("enqueue", *args, "--json")
    assert answer.code == 2
    assert answer.json["error"]["type"] == "BadArgument"
    assert answer.json["error"]["message"].startswith(named)
    assert answer.err.count("\n") == 1
    assert count(conn) == 0


def test_too_much_data_is_refused_by_the_limit_of_the_installation(
    sokka: Sokka, conn: psycopg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "big.json"
    file.write_text(json.dumps("x" * 1_100_000))
    refused = sokka("enqueue", "mail", "--data", f"@{file}")
    assert refused.code == 2
    assert "1048576 bytes" in refused.err
    conn.execute("update sokka.settings set max_data_bytes = 2000000")
    assert sokka("enqueue", "mail", "--data", f"@{file}").code == 0


def test_each_line_of_a_file_becomes_a_task(
    sokka: Sokka, conn: psycopg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.jsonl"
    lines = [json.dumps({"data": {"n": n}}) for n in range(2_500)]
    lines[7] = json.dumps(
        {"topic": "other", "priority": 1, "timeout": "5m", "run_at": "2999-01-01T00:00Z",
         "retry": {"initial": "1m", "max_attempts": 3}}
    )  # fmt: skip
    lines.insert(3, "")
    file.write_text("\n".join(lines))
    answer = sokka("enqueue", "mail", "--bulk", file, "--priority", 7)
    assert (answer.code, answer.out) == (0, "2500 tasks created\n")
    found = conn.execute(
        "select topic, priority, timeout, count(*) from sokka.tasks group by 1, 2, 3 order by 1"
    ).fetchall()
    assert found == [("mail", 7, None, 2_499), ("other", 1, timedelta(minutes=5), 1)]


def test_a_pipe_is_read_and_answered_line_by_line(sokka: Sokka) -> None:
    spec = json.dumps({"topic": "mail", "unique_key": "k"})
    answer = sokka("enqueue", "--bulk", "-", "--json", given=f"{spec}\n\n{spec}\n")
    assert answer.code == 0
    assert [(line["line"], line["created"]) for line in answer.lines] == [(1, True), (3, False)]
    assert answer.lines[0]["task_id"] == answer.lines[1]["task_id"]


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (b"{", "is no JSON"),
        (b"[]", "must be a JSON object, not list"),
        (b"null", "must be a JSON object, not NoneType"),
        (b'"\xff"', "is not UTF-8"),
        (b'{"run_at": "2030-01-01T00:00"}', "run_at: needs a time zone"),
        (b'{"run_at": 5}', "run_at: must be a datetime"),
        (b'{"timeout": "soon"}', "timeout: must be a duration"),
        (b'{"retry": true}', "retry: must be"),
        (b'{"priority": 11}', "priority: must be from 0 to 9"),
        (b'{"colour": 1}', "colour: is no argument of create_task"),
        (b'{"topic": "a\\u0007"}', "topic: must not contain control characters"),
        (b'{"data": "\\u0000"}', "data at $"),
        (b'{"task_id": "1"}', "task_id: must be a UUID"),
    ],
)
def test_a_bad_line_is_named_and_what_stands_before_it_is_stored(
    sokka: Sokka, conn: psycopg.Connection, bad: bytes, rule: str
) -> None:
    good = b'{"data": 1}\n'
    answer = sokka("enqueue", "mail", "--bulk", "-", given=good * 4_004 + bad + b"\n" + good)
    assert answer.code == 2
    assert answer.err.startswith(f"sokka: line 4005: {rule}"), answer.err
    # A line that cannot be read is met before its batch goes, another with it.
    if "the lines before it are stored" in answer.err:
        assert count(conn) == 4_004
    else:
        assert "nothing is stored from line 4001 on" in answer.err
        assert count(conn) == 4_000


def test_a_line_that_the_server_refuses_is_named_among_all_lines(
    sokka: Sokka, conn: psycopg.Connection
) -> None:
    sokka("enqueue", "mail", "--unique-key", "k")
    lines = ["{}"] * 5_600
    lines[4_234] = '{"unique_key": "k", "on_conflict": "error"}'
    lines.insert(9, "")
    answer = sokka("enqueue", "mail", "--bulk", "-", "--json", given="\n".join(lines))
    assert answer.code == 1
    # The empty line counts as a line, though it is no task.
    said = answer.lines[-1]["error"]["message"]
    assert said.startswith("line 4236: ")
    assert "nothing is stored from line 4002 on" in said
    assert [line["line"] for line in answer.lines[:-1]] == [*range(1, 10), *range(11, 4_002)]
    assert count(conn) == 4_001


def test_a_line_whose_key_is_taken_is_named(sokka: Sokka, conn: psycopg.Connection) -> None:
    sokka("enqueue", "mail", "--unique-key", "k")
    given = '{}\n{"unique_key": "k"}\n'
    answer = sokka("enqueue", "mail", "--bulk", "-", "--on-conflict", "error", given=given)
    assert answer.code == 1
    assert answer.err.startswith("sokka: line 2: ")
    assert count(conn) == 1
