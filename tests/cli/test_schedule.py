"""``sokka schedule`` looks at schedules, steers them, and fires them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sokka_pg.store import PgTaskStore
from tests.cli.conftest import SCRIPT, Sokka

DEADLINE_S = 60
PROGRAM = """
from sokka_pg import Sokka

app = Sokka(name="shop")


@app.periodic("{schedule}", topic="t", name="nightly")
def report() -> None: ...
"""


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a program, and says what --app takes."""
    monkeypatch.chdir(tmp_path)
    names = iter(f"program_{tmp_path.name.replace('-', '_')}_{n}" for n in range(100))

    def write(schedule: str) -> str:
        name = next(names)
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(schedule=schedule))
        return f"{name}:app"

    return write


def test_an_added_schedule_is_listed_and_shown(sokka: Sokka, store: PgTaskStore) -> None:
    added = sokka(
        "schedule", "add", "nightly", "0 30 2 * * *", "--topic", "reports", "--kind", "report",
        "--tz", "Europe/Berlin", "--data", '{"n": 1}', "--missed", "all", "--max-catch-up", 5,
        "--grace", "5m", "--serial", "--repeats", 3, "--expires-at", "2040-01-01T00:00:00Z",
        "--description", "why", "--priority", 2, "--timeout", "1m",
        "--retry", '{"max_attempts": 3}',
    )  # fmt: skip
    assert added.code == 0 and added.out.startswith("nightly stands: next at ")
    row = store.schedule("nightly")
    assert row is not None
    assert (row.schedule, row.source) == ("TZ=Europe/Berlin 0 30 2 * * *", "cli")
    assert (row.topic, row.kind, row.task["data"]) == ("reports", "report", {"n": 1})
    assert (row.missed, row.max_catch_up, row.serial, row.repeats) == ("all", 5, True, 3)
    listed = sokka("schedule", "list", "--json").json
    states = [(each["name"], each["state"]) for each in listed["schedules"]]
    assert states == [("nightly", "active")]
    assert "nightly" in sokka("schedule", "list", "--source", "cli").out
    assert sokka("schedule", "list", "--state", "failing", "--json").json["schedules"] == []
    shown = sokka("schedule", "show", "nightly")
    assert "Europe/Berlin" in shown.out and "why" in shown.out
    facts = sokka("schedule", "show", "nightly", "--json").json
    assert len(facts["upcoming"]) == 3 and facts["upcoming"][0]["zone"] == "Europe/Berlin"


def test_a_name_is_added_once_unless_it_is_replaced(sokka: Sokka, store: PgTaskStore) -> None:
    add = ("schedule", "add", "a", "@every 5m", "--topic", "t")
    assert sokka(*add, "--json").json["generation"] == 1
    assert "the same" in sokka(*add).out
    other = sokka("schedule", "add", "a", "@every 6m", "--topic", "t")
    assert (other.code, "already" in other.err) == (1, True)
    assert sokka("schedule", "add", "a", "@every 6m", "--topic", "t", "--replace").code == 0
    row = store.schedule("a")
    assert row is not None and (row.generation, row.schedule) == (2, "@every 6m")


def test_pages_of_a_list_follow_each_other(sokka: Sokka) -> None:
    for name in "abc":
        sokka("schedule", "add", name, "@daily", "--topic", "t")
    first = sokka("schedule", "list", "-n", 2)
    assert "--cursor b" in first.err
    found = sokka("schedule", "list", "-n", 2, "--cursor", "b", "--json").json
    assert [each["name"] for each in found["schedules"]] == ["c"]


def test_a_schedule_is_paused_resumed_triggered_and_deleted(
    sokka: Sokka, store: PgTaskStore
) -> None:
    sokka("schedule", "add", "a", "@daily", "--topic", "t")
    assert sokka("schedule", "pause", "a", "--reason", "stocktaking").out == "a is paused\n"
    task_id = sokka("schedule", "trigger", "a").out.strip()
    task = store.task(task_id)
    assert task is not None and task.topic == "t"
    assert sokka("schedule", "resume", "a", "--json").json["state"] == "active"
    assert sokka("schedule", "delete", "a").out == "a is deleted\n"
    assert sokka("schedule", "delete", "a", "--json").json == {"name": "a", "deleted": False}
    for verb in ("show", "pause", "resume", "trigger", "preview"):
        assert sokka("schedule", verb, "a").code == 1, verb


def test_a_preview_marks_where_the_clock_is_turned(sokka: Sokka) -> None:
    def fires(text: str, after: str, count: int) -> list[tuple[str, str]]:
        found = sokka(
            "schedule", "preview", text, "--tz", "Europe/Berlin", "--after", after, "-n", count,
            "--json",
        )  # fmt: skip
        return [(each["local"], each["mark"]) for each in found.json["fires"]]

    assert fires("0 30 2 * * *", "2026-03-28T00:00:00Z", 3) == [
        ("2026-03-28T02:30:00+01:00", ""), ("2026-03-29T03:00:00+02:00", "gap"),
        ("2026-03-30T02:30:00+02:00", ""),
    ]  # fmt: skip
    assert fires("0 0 * * * *", "2026-10-24T23:30:00Z", 3) == [
        ("2026-10-25T02:00:00+02:00", "overlap first"),
        ("2026-10-25T02:00:00+01:00", "overlap second"), ("2026-10-25T03:00:00+01:00", ""),
    ]  # fmt: skip
    text = sokka("schedule", "preview", "TZ=Europe/Berlin 30 2 * * *", "--after",
                 "2026-03-28T12:00:00Z", "-n", 1)  # fmt: skip
    assert "2026-03-29 01:00:00" in text.out and "+0200" in text.out and "gap" in text.out


def test_a_preview_of_text_needs_no_database(script: Callable[..., object]) -> None:
    found = script("schedule", "preview", "@every 90m", "-n", 2, url="postgresql://127.0.0.1:1/x")
    assert found.returncode == 0  # type: ignore[attr-defined]
    assert len(found.stdout.strip().splitlines()) == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 0 30 2 *", "never fires"),
        ("77 * * * *", "minute"),
        ("@every -5m", "interval"),
        ("TZ=Mars/Base 0 0 * * *", "zone"),
    ],
)
def test_what_is_meant_as_text_is_refused_without_a_database(
    script: Callable[..., object], text: str, why: str
) -> None:
    told = script("schedule", "preview", text)
    assert told.returncode == 2  # type: ignore[attr-defined]
    assert why in told.stderr  # type: ignore[attr-defined]
    assert "embedded" not in told.stderr  # type: ignore[attr-defined]


def test_a_preview_of_a_name_follows_the_schedule_to_its_end(sokka: Sokka) -> None:
    sokka("schedule", "add", "a", "@every 1h from 2026-01-01T00:10:00Z", "--topic", "t",
          "--repeats", 2)  # fmt: skip
    found = sokka("schedule", "preview", "a", "--json").json["fires"]
    assert [each["at"][13:19] for each in found] == [":10:00", ":10:00"]
    after = sokka("schedule", "preview", "a", "--after", found[0]["at"], "--json").json["fires"]
    assert after == found[1:]
    over = sokka("schedule", "preview", "@at 2020-01-01T00:00:00Z")
    assert (over.code, "not fire any more" in over.err) == (0, True)


@pytest.mark.parametrize(
    "args",
    [
        ["add", "a", "nonsense", "--topic", "t"], ["add", "", "@daily", "--topic", "t"],
        ["add", "a", "@daily"], ["add", "a", "@at 2020-01-01T00:00:00Z", "--topic", "t"],
        ["add", "a", "@daily", "--topic", "t", "--missed", "never"],
        ["add", "a", "@daily", "--topic", "t", "--repeats", "0"],
        ["add", "a", "@daily", "--topic", "t", "--data", "{"],
        ["add", "a", "@daily", "--topic", "t", "--tz", "Mars/X"],
        ["list", "--state", "odd"], ["list", "-n", "0"], ["pause", "a\x1bb"],
        ["preview", "@daily", "--tz", "Mars/X"], ["preview", "@daily", "--after", "soon"],
        ["preview", "@daily", "-n", "0"], ["sync"], ["sync", "--app", "nothing:app"],
        ["run", "--app", "nothing"], ["delete", "x" * 201],
    ],
)  # fmt: skip
def test_a_wrong_argument_changes_nothing(sokka: Sokka, args: list[str]) -> None:
    assert sokka("schedule", *args).code == 2
    assert sokka("schedule", "list", "--json").json["schedules"] == []


def test_periodic_tasks_of_an_app_are_put_and_pruned(
    sokka: Sokka, program: Callable[[str], str], store: PgTaskStore
) -> None:
    assert sokka("schedule", "sync", "--app", program("@daily")).out == "created: nightly\n"
    assert sokka("schedule", "sync", "--app", program("@hourly")).out == "changed: nightly\n"
    none = Path.cwd() / "none_at_all.py"
    none.write_text('from sokka_pg import Sokka\n\napp = Sokka(name="shop")\n')
    said = sokka("schedule", "sync", "--app", "none_at_all:app").out
    assert said == "this app declares no periodic task\n"
    report = sokka("schedule", "sync", "--app", "none_at_all:app", "--prune", "--json").json
    assert report["deleted"] == ["nightly"]
    assert store.schedule("nightly") is None


@pytest.mark.parametrize("with_app", [False, True])
def test_run_fires_until_it_is_told_to_stop(
    db: str, conn: psycopg.Connection, sokka: Sokka, program: Callable[[str], str], with_app: bool
) -> None:
    args = ["--app", program("@every 50ms")] if with_app else ["--pooler"]
    if not with_app:
        sokka("schedule", "add", "a", "@every 50ms", "--topic", "t")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "schedule", "run", *args],
        env={**os.environ, "SOKKA_DATABASE_URL": db}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    give_up_at = time.monotonic() + DEADLINE_S
    while conn.execute("select from sokka.tasks").rowcount < 3:
        assert time.monotonic() < give_up_at and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, "stopped\n"), err


def test_names_are_completed(db: str, script: Callable[..., object], sokka: Sokka) -> None:
    for name in ("nightly", "noon", "weekly"):
        sokka("schedule", "add", name, "@daily", "--topic", "t")
    found = script(
        url=db, _SOKKA_COMPLETE="complete_bash", COMP_WORDS="sokka schedule show n", COMP_CWORD="3"
    )
    assert found.stdout.split() == ["nightly", "noon"]  # type: ignore[attr-defined]
