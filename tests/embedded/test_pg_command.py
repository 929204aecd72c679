from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from sokka_pg.cli import pg
from sokka_pg.embedded.postmaster import process_lives
from tests.embedded.processes import Child

Command = Callable[..., Any]


@pytest.fixture
def command(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Runs ``sokka pg`` in an empty folder."""
    monkeypatch.chdir(home)
    run = CliRunner()
    yield lambda *words: run.invoke(pg.app, list(words))
    run.invoke(pg.app, ["stop", "--force"])


def test_start_leaves_a_server_up_and_prints_its_url_until_stop(command: Command) -> None:
    started = command("start")
    assert started.exit_code == 0
    url = started.stdout.strip()
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert command("start").stdout.strip() == url
    assert command("url").stdout.strip() == url
    stopped = command("stop")
    assert (stopped.exit_code, stopped.stdout.strip()) == (0, "stopped")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_every_answer_can_be_json(command: Command) -> None:
    facts = json.loads(command("start", "--json").stdout)
    assert set(facts) == {"url", "version", "data_dir", "pid", "log"}
    assert json.loads(command("url", "--json").stdout) == {"url": facts["url"]}
    told = json.loads(command("psql", "--json", "--", "-x").stdout)["command"]
    assert told[1:] == [facts["url"], "-x"]
    assert json.loads(command("stop", "--json").stdout) == {"outcome": "stopped"}
    assert json.loads(command("stop", "--json").stdout) == {"outcome": "not running"}
    refused = command("url", "--json")
    assert refused.exit_code == 3
    assert json.loads(refused.stdout)["error"]["type"] == "DatabaseUnavailable"


def test_url_of_a_server_that_is_down_is_exit_3_and_says_what_to_do(command: Command) -> None:
    answer = command("url")
    assert (answer.exit_code, answer.stdout) == (3, "")
    assert "sokka pg start" in answer.stderr


def test_stop_of_a_server_in_use_is_exit_1_and_force_ends_it(
    command: Command, home: Path, user: Callable[..., Child]
) -> None:
    worker = user(home / ".sokka" / "data")
    pid, _ = worker.server()
    answer = command("stop")
    assert answer.exit_code == 1
    assert "stops when the last process leaves" in answer.stdout
    assert process_lives(pid)
    assert command("stop", "--force").exit_code == 0
    assert not process_lives(pid)
    worker.leave()


def test_psql_runs_on_a_server_that_it_starts_and_stops(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = command("psql", "--", "-Atc", "select 6 * 7")
    assert answer.exit_code == 0
    assert capfd.readouterr().out.strip() == "42"
    assert command("psql", "--", "-Atc", "select no_such").exit_code == 1
    assert command("url").exit_code == 3


def test_psql_falls_back_to_path_and_says_plainly_when_there_is_none(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def without_psql(folder: Path) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(bin_dir=tmp_path, url=lambda database: "postgresql://x")

    monkeypatch.setattr(pg, "dev_server", without_psql)
    monkeypatch.setattr(shutil, "which", lambda name: f"/some/{name}")
    assert json.loads(command("psql", "--json").stdout)["command"][0] == "/some/psql"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    answer = command("psql")
    assert answer.exit_code == 2
    assert "there is no psql" in answer.stderr


def test_another_folder_can_be_named_and_a_wrong_one_is_exit_2(
    command: Command, home: Path
) -> None:
    (home / "taken").mkdir()
    (home / "taken" / "data").mkdir()
    (home / "taken" / "data" / "letter.txt").touch()
    assert command("start", "--dir", "taken").exit_code == 2
    assert command("start", "--dir", "other").exit_code == 0
    assert command("stop", "--dir", "other").exit_code == 0
    assert command("start", "--no-such").exit_code == 2


@pytest.mark.parametrize("name", ["start", "stop", "url", "psql"])
def test_help_shows_examples(command: Command, name: str) -> None:
    answer = command(name, "--help")
    assert answer.exit_code == 0
    assert f"sokka pg {name}" in answer.stdout
