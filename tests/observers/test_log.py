"""Events become lines that a program can read and nobody can forge."""

from __future__ import annotations

import json
import logging

import pytest

from sokka_pg import events
from sokka_pg.cli.worker import JsonLines
from sokka_pg.observers import LogObserver
from tests.observers.samples import EVENTS, ID, task
from tests.observers.test_prometheus import JobEvent, Kind


@pytest.fixture
def caught(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "sokka_pg.events")
    return caplog


def test_an_event_is_one_line_of_its_name_and_fields(caught: pytest.LogCaptureFixture) -> None:
    LogObserver().notice(events.Failed(*task("mail", "send"), code="a b", duration_s=0.25))
    (record,) = caught.records
    assert record.getMessage() == (
        f"Failed task_id={ID} topic=mail kind=send attempt=1 token=7 code=\"a b\" duration_s=0.25"
    )
    assert record.levelno == logging.WARNING


def test_every_event_can_be_written_as_json(caught: pytest.LogCaptureFixture) -> None:
    for event in EVENTS:
        LogObserver().notice(event)
    said = [json.loads(JsonLines().format(record)) for record in caught.records]
    assert [line["event"] for line in said] == [type(event).__name__ for event in EVENTS]
    assert said[0]["fields"]["waited_s"] == 0.1


@pytest.mark.parametrize("text", ["x\nWorkerStopped pid=w", "\x1b[2J", 'a" token="9', "\u2028"])
def test_no_value_forges_a_line_or_a_field(text: str, caught: pytest.LogCaptureFixture) -> None:
    LogObserver().notice(events.Disconnected("desk", text))
    (record,) = caught.records
    assert record.getMessage() == f"Disconnected part=desk error={json.dumps(text)}"
    assert record.getMessage().isprintable()


def test_a_password_in_an_error_is_not_written(caught: pytest.LogCaptureFixture) -> None:
    LogObserver().notice(events.Disconnected("desk", "no postgresql://ann:secret@db/shop"))
    (record,) = caught.records
    assert "secret" not in record.getMessage() + json.dumps(record.__dict__, default=str)


def test_what_every_task_brings_along_is_for_debugging(caught: pytest.LogCaptureFixture) -> None:
    caught.set_level(logging.INFO, "sokka_pg.events")
    for event in EVENTS:
        LogObserver().notice(event)
    said = {record.__dict__["event"] for record in caught.records}
    assert {type(event).__name__ for event in EVENTS} - said == {
        "Reserved", "Started", "Called", "Extended"
    }


def test_events_of_jobs_are_written_too(caught: pytest.LogCaptureFixture) -> None:
    LogObserver().observe(JobEvent(Kind.FAILED, "report", error=ValueError("secret")))
    (record,) = caught.records
    assert record.getMessage() == "job_failed job=report attempt=1 error=ValueError"
    assert record.levelno == logging.WARNING
