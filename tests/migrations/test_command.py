"""`sokka migrate` from the outside: words, JSON and exit codes."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from sokka_pg import embedded, migrate
from sokka_pg.cli.main import app

HEAD = migrate.revision("head")
BELOW_HEAD = migrate.revision_below(HEAD)
Sokka = Callable[..., Result]


@pytest.fixture
def sokka() -> Sokka:
    """Runs a command line in this process."""
    return lambda *line: CliRunner().invoke(app, [str(word) for word in line])


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that is taken, so that no server can be there, and that accepts nothing."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_alone_it_goes_to_the_newest_and_says_so(sokka: Sokka, empty_db: str) -> None:
    first = sokka("migrate", "--database-url", empty_db)
    again = sokka("migrate", "--database-url", empty_db)
    assert (first.exit_code, first.stdout) == (0, f"schema sokka went from base to {HEAD}\n")
    assert (again.exit_code, again.stdout) == (0, f"schema sokka is at {HEAD}\n")


def test_options_may_stand_before_or_after_the_command(sokka: Sokka, empty_db: str) -> None:
    options = ["--database-url", empty_db, "--schema", "jobs", "--json"]
    lines = [
        [*options, "migrate"],
        ["migrate", *options, "current"],
        ["migrate", "current", *options],
        [*options, "migrate", "to", "base"],
        ["migrate", "to", "head", *options],
        ["migrate", "down", *options],
    ]
    facts = []
    for line in lines:
        result = sokka(*line)
        assert result.exit_code == 0, result.output
        facts.append(json.loads(result.stdout))
    assert {fact["schema"] for fact in facts} == {"jobs"}
    assert [fact.get("after", fact.get("current")) for fact in facts] == [
        HEAD, HEAD, HEAD, None, HEAD, BELOW_HEAD,
    ]  # fmt: skip


def test_check_exits_1_until_the_schema_is_right(sokka: Sokka, empty_db: str) -> None:
    before = sokka("migrate", "check", "--database-url", empty_db)
    migrate.upgrade(empty_db)
    after = sokka("migrate", "check", "--database-url", empty_db, "--json")
    with psycopg.connect(empty_db) as connection:
        connection.execute("drop function sokka.get_task")
    drifted = sokka("migrate", "check", "--database-url", empty_db)

    assert before.exit_code == 1
    assert "is at base" in before.stdout
    assert after.exit_code == 0
    assert json.loads(after.stdout)["ok"] is True
    assert drifted.exit_code == 1
    assert "missing: function sokka.get_task(uuid)" in drifted.stdout


def test_the_text_needs_no_database(sokka: Sokka) -> None:
    up = sokka("migrate", "--sql", "--schema", "jobs")
    down = sokka("migrate", "down", "--sql")
    fence = sokka("migrate", "--sql", "--fence-only")
    part = sokka("migrate", "to", "base", "--sql", "--from", "head", "--json")
    assert [r.exit_code for r in (up, down, fence, part)] == [0, 0, 0, 0]
    assert up.stdout == migrate.sql("jobs") + "\n"
    assert down.stdout == migrate.sql(to=migrate.revision_below(HEAD), start=HEAD) + "\n"
    assert fence.stdout == migrate.fence_sql() + "\n"
    assert json.loads(part.stdout)["sql"] == migrate.sql(to="base", start="head")


def test_a_fence_alone(sokka: Sokka, empty_db: str) -> None:
    line = ["migrate", "--fence-only", "--schema", "fences", "--database-url", empty_db, "--json"]
    assert json.loads(sokka(*line).stdout) == {"schema": "fences", "installed": True}
    assert json.loads(sokka(*line).stdout) == {"schema": "fences", "installed": False}


@pytest.mark.parametrize(
    "line",
    [
        ["migrate", "--schema", "Bad"],
        ["migrate", "to", "9999"],
        ["migrate", "to"],
        ["migrate", "--nonsense"],
        ["migrate", "sideways"],
        ["migrate", "--database-url", "mysql://u:hunter2@h/d"],
        ["migrate", "--database-url", "host=h hunter2"],
        ["migrate", "--sql", "--from", "9999"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_with_one_message(sokka: Sokka, line: list[str]) -> None:
    result = sokka(*line)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert "Traceback" not in result.output
    assert "hunter2" not in result.output


@pytest.mark.parametrize("command", [[], ["check"], ["current"], ["down"], ["--fence-only"]])
def test_no_database_to_be_reached_exits_3_and_keeps_the_password(
    sokka: Sokka, command: list[str], dead_port: int
) -> None:
    url = f"postgresql://me:hunter2@127.0.0.1:{dead_port}/d"
    result = sokka("migrate", "--database-url", url, "--json", *command)
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["error"]["type"] == "DatabaseUnavailable"
    assert len(result.stderr.splitlines()) == 1
    assert "hunter2" not in result.output


def test_a_refusal_exits_1_with_one_line(sokka: Sokka, empty_db: str) -> None:
    migrate.fence_only(empty_db)
    result = sokka("migrate", "--database-url", empty_db)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [result.stderr.strip()]
    assert "choose another schema" in result.stderr


def test_where_nothing_names_a_database_the_embedded_one_is_used_and_said(
    sokka: Sokka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    try:
        first = sokka("migrate", "--json")
        second = sokka("migrate", "current", "--json")
    finally:
        embedded.end_dev_server(tmp_path / ".sokka")
        cluster = (tmp_path / ".sokka" / "data").resolve()
        if not cluster.is_relative_to(tmp_path.resolve()):  # root's, below /var/tmp
            shutil.rmtree(cluster.parent)

    assert json.loads(first.stdout)["after"] == HEAD
    assert json.loads(second.stdout)["current"] == HEAD
    for result in (first, second):
        assert "embedded server in ./.sokka" in result.stderr


def test_each_command_has_help_with_an_example(sokka: Sokka) -> None:
    for line in (["migrate"], ["migrate", "to"], ["migrate", "down"], ["migrate", "check"]):
        result = sokka(*line, "--help")
        assert result.exit_code == 0
        assert "Example" in result.stdout
