"""The command line as tests call it: in this process, or as the console script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from sokka_pg.cli.main import app
from sokka_pg.doctor import Finding, Level

# What the console script of the package does.
SCRIPT = "from sokka_pg.cli.main import run; run()"


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Sokka = Callable[..., Answer]
Look = Callable[[str], list[Finding]]


def call(*args: object, given: str | bytes | None = None) -> Answer:
    """Run a command in this process. What it raises beside its exit is a failure."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def sokka(db: str, monkeypatch: pytest.MonkeyPatch) -> Sokka:
    """Runs a command against the test's own database."""
    monkeypatch.setenv("SOKKA_DATABASE_URL", db)
    return call


@pytest.fixture
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the console script in a process of its own, without a terminal."""

    def run(*args: object, url: str | None = None, **environment: str) -> Any:
        variables = {**os.environ, **environment}
        if url is not None:
            variables["SOKKA_DATABASE_URL"] = url
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *map(str, args)],
            capture_output=True, text=True, check=False, timeout=120, env=variables,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


@pytest.fixture
def look(sokka: Sokka) -> Look:
    """The findings of one check."""

    def run(check: str) -> list[Finding]:
        found = [Finding(**each) for each in sokka("doctor", "--json").json["findings"]]
        return [each for each in found if each.check == check]

    return run


def worst(found: list[Finding]) -> Level:
    order = [Level.OK, Level.WARN, Level.FAIL]
    return max((Level(each.level) for each in found), key=order.index)


def set_clock(conn: psycopg.Connection, expression: str) -> None:
    conn.execute(
        "create or replace function sokka.clock() returns timestamptz language sql"
        f" as $$ select {expression} $$"
    )
