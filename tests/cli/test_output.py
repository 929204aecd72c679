"""What every command owes its callers: exit codes, JSON, quiet pipes, harmless text."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from sokka_pg.cli.main import app
from sokka_pg.store import PgTaskStore
from tests.cli.conftest import SCRIPT, Sokka, call

Script = Callable[..., subprocess.CompletedProcess[str]]
NOBODY = "postgresql://ann:s3cr3t-w0rd@127.0.0.1:1/shop"
HOSTILE = "[red]a[/red] \x1b[31mb\x07\u202e\u2028 é [link=file:///etc]c"


def commands() -> Iterator[tuple[str, ...]]:
    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        found = getattr(command, "commands", {})
        if not found:
            yield path
        for name, each in found.items():
            yield from below(each, (*path, name))

    return below(typer.main.get_command(app), ())


OURS = [path for path in commands() if path[0] in ("enqueue", "task", "topic", "doctor", "bench")]


@pytest.mark.parametrize("path", OURS, ids=" ".join)
def test_every_command_helps_with_an_example(path: tuple[str, ...]) -> None:
    answer = call(*path, "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert "Example" in text
    assert f"sokka {' '.join(path)}" in text
    assert "--json" in text


@pytest.mark.parametrize(
    "args",
    [
        ["enqueue", "mail"], ["task", "list"], ["topic", "list"], ["doctor"],
        ["bench", "--only", "hot"], ["enqueue", "mail", "--delay", "1s"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("spelling", ["option", "environment"])
def test_no_database_is_exit_3_and_no_password_is_told(
    args: list[str], spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spelling == "option":
        args = [*args, "--database-url", NOBODY]
    else:
        monkeypatch.setenv("SOKKA_DATABASE_URL", NOBODY)
    answer = call(*args, "--json")
    assert answer.code == 3
    assert answer.json["error"]["type"] == "DatabaseUnavailable"
    assert "s3cr3t" not in answer.out + answer.err


def test_a_refused_login_is_exit_3_too(db: str) -> None:
    answer = call("task", "list", "--database-url", f"{db.rpartition('/')[0]}/no_such_database")
    assert answer.code == 3
    assert "no_such_database" in answer.err


def test_a_bad_connection_string_is_wrong_usage_and_not_repeated() -> None:
    answer = call("task", "list", "--database-url", "mysql://ann:s3cr3t@x/y")
    assert answer.code == 2
    assert "s3cr3t" not in answer.err


def test_a_database_without_the_schema_says_migrate(empty_db: str) -> None:
    answer = call("task", "list", "--database-url", empty_db, "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "SchemaMismatch"
    assert "sokka migrate" in answer.err


def test_another_schema_is_another_queue(sokka: Sokka) -> None:
    assert sokka("--schema", "jobs", "task", "list").code == 1
    assert sokka("task", "list", "--schema", "Jobs; drop").code == 2


def test_hostile_text_is_shown_and_never_obeyed(sokka: Sokka, db: str) -> None:
    with PgTaskStore(db) as store:
        topic = HOSTILE.replace("\x1b", "").replace("\x07", "")
        task_id = store.create_task(
            topic, {"text": HOSTILE}, kind=topic, headers={HOSTILE: HOSTILE}
        ).task_id
        leased = store.reserve_task(topic, topic)
        assert leased is not None
        store.record_step(leased, name=topic, value=HOSTILE)
        store.fail(leased, error={"code": HOSTILE, "message": HOSTILE})
        store.pause_topic(topic, HOSTILE)
    for args in (
        ["task", "list"], ["task", "show", task_id], ["task", "history", task_id],
        ["task", "tree", task_id], ["topic", "list"], ["doctor"],
    ):  # fmt: skip
        answer = sokka(*args)
        shown = answer.out + answer.err
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]", shown), args
        assert "[red]a[/red]" in shown.replace("\n", ""), args
        as_json = sokka(*args, "--json")
        assert as_json.out.isascii()
        assert json.loads(as_json.out)


def test_the_script_works_without_terminal_and_colour(db: str, script: Script) -> None:
    made = script("enqueue", "mail", "--data", "[1]", url=db)
    assert (made.returncode, made.stderr) == (0, "")
    listed = script("task", "list", url=db, NO_COLOR="1", TERM="dumb", COLUMNS="20")
    assert made.stdout.strip() in listed.stdout
    assert "\x1b" not in listed.stdout
    assert script("task", "show", "x", url=db).returncode == 2
    assert script("no-such-command").returncode == 2
    # Bytes that are no UTF-8 reach Python as halves of surrogate pairs.
    assert script("enqueue", "a\udcff", url=db).returncode == 2


def test_a_reader_that_leaves_makes_no_noise(db: str) -> None:
    with PgTaskStore(db) as store:
        store.create_tasks([{"topic": "mail"}] * 5_000)
    for args in (["--all", "--json"], ["--all"]):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "task", "list", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "SOKKA_DATABASE_URL": db},
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait(60) in (0, 1, 141)


def test_tables_fit_a_terminal_of_80_columns(db: str) -> None:
    with PgTaskStore(db) as store:
        task_id = store.create_task("a-topic-of-some-length", kind="a-kind-of-some-length").task_id
        store.reserve_task("a-topic-of-some-length", "host.example.org:12345:deadbeef")
    for args in (["task", "list"], ["task", "history", str(task_id)], ["topic", "list"]):
        lines = _on_a_terminal(db, args)
        assert max(map(len, lines)) <= 80, args
        if args == ["task", "list"]:
            assert any(str(task_id) in line for line in lines)


def _on_a_terminal(url: str, args: list[str]) -> list[str]:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *args], stdin=child, stdout=child, stderr=child,
        env={**os.environ, "SOKKA_DATABASE_URL": url, "COLUMNS": "80", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(child)
    written = b""
    # On Linux the end of a terminal without a child is an error, not an empty read.
    try:
        while piece := os.read(parent, 65_536):
            written += piece
    except OSError:
        pass
    finally:
        os.close(parent)
    assert process.wait(60) == 0, written
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    return [line.rstrip() for line in text.splitlines()]
