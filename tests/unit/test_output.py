"""What commands print cannot steer a terminal, forge a line or show a password."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from sokka_pg.cli import output
from sokka_pg.errors import (
    BadArgument,
    Busy,
    DatabaseUnavailable,
    NoTaskFound,
    SchemaMismatch,
    SokkaError,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoTaskFound("x"), 1), (Busy("x"), 1), (SchemaMismatch("x"), 1),
        (UsageError("x"), 2), (BadArgument("x"), 2), (DatabaseUnavailable("x"), 3),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_exit_code(error: SokkaError, code: int) -> None:
    assert output.exit_code(error) == code


def test_control_characters_are_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    output.report(DatabaseUnavailable("a\x1b[2Jb\u2028c\x00d\r\ne\x9b"), as_json=False)
    assert capsys.readouterr().err == "sokka: a\\x1b[2Jb c\\x00d e\\x9b\n"


def test_an_error_in_json_goes_to_stdout_and_a_line_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.report(NoTaskFound("at postgresql://u:hunter2@h/d", {"task_id": "7"}), as_json=True)
    said = capsys.readouterr()
    message = "at postgresql://u:***@h/d"
    assert json.loads(said.out) == {
        "error": {"type": "NoTaskFound", "message": message, "detail": {"task_id": "7"}}
    }
    assert said.err == f"sokka: {message}\n"


def test_json_has_a_plain_form_for_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    instant = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    facts = {"a": instant, "b": timedelta(minutes=1), "c": uuid.UUID(int=7), "d": {"y", "x"}}
    output.answer(facts, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "a": "2026-01-02T03:04:05+00:00", "b": 60.0, "c": str(uuid.UUID(int=7)), "d": ["x", "y"],
    }  # fmt: skip


def test_a_table_shows_text_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["name", "data"], [["[red]a\nb[/red]", {"k": "\x1b"}], [None, 1]])
    shown = capsys.readouterr().out
    assert "[red]a\\nb[/red]" in shown
    assert '{"k": "\\u001b"}' in shown
