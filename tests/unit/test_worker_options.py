from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from sokka_pg import Sokka, TaskContext, WorkerOptions
from sokka_pg.cli.worker import JsonLines, Lines, calls_of, duration
from sokka_pg.engine.pace import Pace
from sokka_pg.engine.strangers import Strangers
from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.worker import new_pid, parse_topics


@pytest.mark.parametrize(
    ("topics", "concurrency", "limits", "total"),
    [
        ("a:10,b:2", None, {"a": 10, "b": 2}, 12),
        ("a", None, {"a": 10}, 10),
        ("a:3, b", None, {"a": 3, "b": 13}, 13),
        (["a", "b:2"], 4, {"a": 4, "b": 2}, 4),
        ("a:50", 5, {"a": 5}, 5),
        ({"odd,name:7": 3}, None, {"odd,name:7": 3}, 3),
        ("with:colon", None, {"with:colon": 10}, 10),
    ],
)
def test_topics_are_written_with_or_without_limits(
    topics: Any, concurrency: int | None, limits: dict[str, int], total: int
) -> None:
    assert parse_topics(topics, concurrency) == (limits, total)


@pytest.mark.parametrize("topics", ["", " ", "a,,b", "a:0", "a,a", [], {}, {"a": True}, {"a": -1}])
def test_topics_that_cannot_be_meant_are_refused(topics: Any) -> None:
    with pytest.raises(BadArgument, match="topics"):
        parse_topics(topics)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", 0.1), ("lease", float("nan")), ("lease", "30s"), ("lease", -1), ("lease", True),
        ("grace", -1), ("poll", 0), ("startup", -1), ("concurrency", 0), ("concurrency", True),
        ("prefetch", -1), ("prefetch", 1.5),
        ("calls", 0), ("calls", 3), ("calls", True),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadArgument, match=name):
        WorkerOptions(**{name: value}).checked()


def test_no_two_process_starts_have_the_same_pid() -> None:
    assert len({new_pid() for _ in range(100)}) == 100
    assert len(new_pid()) <= 200


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("5m", 300), ("2 h", 7200), ("7", 7)]
)
def test_durations_on_the_command_line_have_units(text: str, seconds: float) -> None:
    assert duration("lease", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 week", "nan", "1e5s", "9" * 400 + "d"])
def test_durations_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="lease"):
        duration("lease", text)


def test_log_lines_hold_no_password_and_cannot_be_forged() -> None:
    record = logging.LogRecord(
        "sokka_pg", logging.WARNING, "", 0, "at %s\nforged", ("postgresql://u:hunter2@h/d",), None
    )
    line, said = Lines().format(record), json.loads(JsonLines().format(record))
    assert "hunter2" not in line + said["message"]
    assert "\n" not in line


def test_prefetch_follows_the_pace_and_is_forgotten() -> None:
    pace = Pace(ahead_s=0.1, memory_s=1.0)
    assert pace.prefetch(0.0, 100) == 0
    for n in range(1000):
        pace.finished(1, n / 1000)
    assert 50 <= pace.prefetch(1.0, 100) <= 100
    assert pace.prefetch(1.0, 7) == 7
    assert pace.prefetch(10.0, 100) == 0


def test_the_pace_of_short_handlers_is_found_at_once() -> None:
    pace = Pace(ahead_s=0.1, memory_s=1.0)
    pace.finished(100, 5.0, 0.001)
    pace.finished(100, 5.05, 0.001)
    assert 300 <= pace.prefetch(5.05, 10_000) <= 500
    pace.finished(100, 9.0, 0.1)
    assert 80 <= pace.prefetch(9.0, 10_000) <= 110, "a pause, and slower ones since"


def test_the_end_of_a_long_handler_makes_nobody_reserve_ahead() -> None:
    pace = Pace(ahead_s=0.1, memory_s=1.0)
    for n in range(5):
        pace.finished(1, 100.0 + 20 * n, 60.0)
        assert pace.prefetch(100.0 + 20 * n, 100) == 0


def test_unknown_kinds_are_remembered_within_bounds() -> None:
    strangers = Strangers(limit=10)
    for n in range(1000):
        strangers.delay_s(f"kind {n}", float(n) / 1000)
    assert len(strangers) == 10


def test_a_delay_grows_once_per_delay_however_many_tasks_come() -> None:
    strangers = Strangers(first_s=1.0, most_s=4.0)
    assert [strangers.delay_s("x", now) for now in (0, 0.1, 0.9)] == [1.0, 1.0, 1.0]
    assert [strangers.delay_s("x", now) for now in (1.0, 1.1, 3.0, 7.0)] == [2.0, 2.0, 4.0, 4.0]
    assert strangers.expected(8.0)
    assert strangers.delay_s("x", 1000.0) == 1.0


def test_an_app_without_tasks_or_without_a_database_says_so() -> None:
    with pytest.raises(UsageError, match="no task"):
        Sokka("postgresql://h/d").worker("t")


def test_a_declared_task_is_still_a_function_and_says_what_it_is() -> None:
    app = Sokka("postgresql://h/d")

    @app.task(topic="mail", kind="send_mail")
    def send(to: str) -> str:
        """Sends."""
        return f"to {to}"

    assert send("ann") == "to ann"
    assert send.__doc__ == "Sends."
    assert repr(send) == "<task 'send_mail' of topic 'mail'>"
    with pytest.raises(UsageError, match="send_mail"):
        app.task(kind="send_mail")(send.spec.handler)


@pytest.mark.parametrize(
    "options", [{"retry": -1}, {"timeout": 0}, {"topic": ""}, {"kind": "a\x00"}, {"retry": "x"}]
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    app = Sokka("postgresql://h/d")

    async def handler(ctx: TaskContext) -> None: ...

    with pytest.raises((BadArgument, UsageError)):
        app.task(**options)(handler)


def test_an_unknown_option_of_configure_is_refused() -> None:
    app = Sokka("postgresql://h/d")

    @app.task
    def handler() -> None: ...

    with pytest.raises(UsageError, match="prioritty"):
        handler.configure(prioritty=1).enqueue()  # type: ignore[call-arg]


def test_little_is_reserved_ahead_of_large_payloads() -> None:
    pace = Pace(ahead_bytes=1000)
    pace.finished(10_000, 1.0)
    pace.weighed(10, 100)
    assert pace.prefetch(1.0, 500) == 100
    pace.weighed(1, 400)
    assert pace.prefetch(1.0, 500) == 2
    pace.weighed(1, 10_000)
    assert pace.prefetch(1.0, 500) == 0
    for _ in range(100):
        pace.weighed(100, 0)
    assert pace.prefetch(1.0, 500) == 500


@pytest.mark.parametrize(
    ("asked", "processes", "calls"),
    [(None, 1, 2), (None, 2, 2), (None, 3, 1), (2, 8, 2), (1, 1, 1)],
)
def test_many_processes_have_one_call_under_way_each(
    asked: int | None, processes: int, calls: int
) -> None:
    assert calls_of(asked, processes) == calls
