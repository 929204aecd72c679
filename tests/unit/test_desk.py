"""What the desk reads out of answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sokka_pg.engine.words import Answer, Settlement, Verb
from sokka_pg.worker.desk import _first_due_in_s
from tests.unit.tasks_made_up import leased


def slept(in_s: float, status: str = "snoozed") -> Answer:
    run_at = datetime.now(UTC) + timedelta(seconds=in_s)
    return Answer("ok", {"status": status, "record_ver": 3, "run_at": run_at.isoformat()})


REFUSED = Answer("SK005", {"status": "snoozed", "token": 3})
FOREVER = Answer("ok", {"status": "snoozed", "record_ver": 3, "run_at": "infinity"})


@pytest.mark.parametrize(
    ("ends", "due"),
    [
        ([], None),
        ([(Verb.TERMINATE, Answer("ok"))], None),
        ([(Verb.RETRY, slept(500)), (Verb.SNOOZE, slept(300)), (Verb.RETRY, slept(400))], 300),
        ([(Verb.RETRY, slept(300, "failed")), (Verb.RETRY, slept(400))], 400),
        ([(Verb.RETRY, REFUSED), (Verb.RETRY, slept(400))], 400),
        ([(Verb.WAIT, FOREVER), (Verb.SNOOZE, slept(200))], 200),
    ],
    ids=["none", "terminated", "the first", "failed", "refused", "waiting"],
)  # fmt: skip
def test_the_first_due_of_those_put_to_sleep(ends: list[Any], due: float | None) -> None:
    settlements = [Settlement(leased(), verb) for verb, _ in ends]
    found = _first_due_in_s(settlements, [answer for _, answer in ends])
    assert found == due if due is None else abs((found or 0.0) - due) < 60
