from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from sokka_pg.engine import outcomes
from sokka_pg.engine.words import Reason, Verb
from sokka_pg.model import Fail, Outcome, Retry, Snooze, Wait
from tests.unit.tasks_made_up import leased


def test_nothing_and_plain_json_terminate_the_task() -> None:
    assert outcomes.from_value(leased(), None).verb is Verb.TERMINATE
    assert outcomes.from_value(leased(), {"a": [1]}).arg == '{"a": [1]}'


def test_a_result_that_cannot_be_stored_fails_with_its_path_and_is_not_retried() -> None:
    settlement = outcomes.from_value(leased(), {"a": [1, object()]})
    assert (settlement.verb, settlement.arg["code"]) == (Verb.FAIL, "result_not_storable")
    assert "$.a[1]" in settlement.arg["message"]


@pytest.mark.parametrize(
    "delay",
    [timedelta(-1), timedelta.max, -1, float("nan"), float("inf"), True, "5", 5, None],
)
def test_a_bad_snooze_is_an_error_of_the_attempt(delay: Any) -> None:
    settlement = outcomes.from_outcome(leased(), Snooze(delay))
    assert (settlement.verb, outcomes.code_of(settlement)) == (Verb.RETRY, "bad_outcome")


def test_no_delay_at_all_is_a_valid_snooze() -> None:
    assert outcomes.from_outcome(leased(), Snooze(timedelta(0))).arg == 0.0


def test_retry_and_fail_carry_their_errors() -> None:
    retried = outcomes.from_outcome(leased(), Retry("later", timedelta(seconds=3)))
    assert retried.arg == {"error": {"code": "error", "message": "later"}, "delay": 3.0}
    failed = outcomes.from_outcome(leased(), Fail({"code": "x"}, {"n": 1}))
    assert failed.arg == {"code": "x", "message": "", "details": {"n": 1}}
    assert outcomes.code_of(failed) == "x"


def test_an_outcome_of_an_unknown_class_or_with_a_hostile_error_is_an_error() -> None:
    for odd in (Outcome(), Fail({"code": object()}), Retry(7)):  # type: ignore[arg-type]
        assert outcomes.code_of(outcomes.from_outcome(leased(), odd)) == "bad_outcome"


def test_each_reason_to_stop_has_its_own_end() -> None:
    task = leased()
    assert outcomes.from_halt(task, Reason.LOST) is None
    ends = {reason: outcomes.from_halt(task, reason) for reason in Reason}
    assert {reason: end and end.verb for reason, end in ends.items()} == {
        Reason.LOST: None, Reason.TIMEOUT: Verb.RETRY, Reason.CANCEL: Verb.FAIL,
        Reason.STOP: Verb.RELEASE,
    }


def test_an_exception_raised_as_an_outcome_is_that_outcome() -> None:
    assert outcomes.from_exception(leased(), Snooze(timedelta(1))).verb is Verb.SNOOZE
    assert outcomes.from_exception(leased(), ValueError("x")).verb is Verb.RETRY


def test_a_wait_names_the_task_that_it_waits_for() -> None:
    settlement = outcomes.from_exception(leased(), Wait(UUID(int=7)))
    assert (settlement.verb, settlement.arg) == (Verb.WAIT, str(UUID(int=7)))
    bad = outcomes.from_value(leased(), Wait("soon"))  # type: ignore[arg-type]
    assert outcomes.code_of(bad) == "bad_outcome"
