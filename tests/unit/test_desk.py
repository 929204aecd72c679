"""What the desk reads out of answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sokka_pg.engine.words import Answer, Settlement, Verb
from sokka_pg.worker.desk import _first_due_in_s
from tests.unit.tasks_made_up import leased


class Slept:
    """The answer of a verb that put its task to sleep, made when the test runs."""

    def __init__(self, in_s: float, status: str = "snoozed") -> None:
        self.in_s, self.status = in_s, status

    def answer(self) -> Answer:
        run_at = datetime.now(UTC) + timedelta(seconds=self.in_s)
        said = {"status": self.status, "record_ver": 3, "run_at": run_at.isoformat()}
        return Answer("ok", said)


REFUSED = Answer("SK005", {"status": "snoozed", "token": 3})
FOREVER = Answer("ok", {"status": "snoozed", "record_ver": 3, "run_at": "infinity"})


@pytest.mark.parametrize(
    ("ends", "due"),
    [
        ([], None),
        ([(Verb.TERMINATE, Answer("ok"))], None),
        ([(Verb.RETRY, Slept(500)), (Verb.SNOOZE, Slept(300)), (Verb.RETRY, Slept(400))], 300),
        ([(Verb.RETRY, Slept(300, "failed")), (Verb.RETRY, Slept(400))], 400),
        ([(Verb.RETRY, REFUSED), (Verb.RETRY, Slept(400))], 400),
        ([(Verb.WAIT, FOREVER), (Verb.SNOOZE, Slept(200))], 200),
    ],
    ids=["none", "terminated", "the first", "failed", "refused", "waiting"],
)  # fmt: skip
def test_the_first_due_of_those_put_to_sleep(ends: list[Any], due: float | None) -> None:
    settlements = [Settlement(leased(), verb) for verb, _ in ends]
    answers = [end.answer() if isinstance(end, Slept) else end for _, end in ends]
    found = _first_due_in_s(settlements, answers)
    assert found == due if due is None else abs((found or 0.0) - due) < 60
