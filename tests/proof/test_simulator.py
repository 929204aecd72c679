"""Interleavings drawn from seeds break no rule, and a seed is an interleaving."""

from __future__ import annotations

import pytest

from tests.proof.history import FAIL, INFO, OK
from tests.proof.simulator import THEMES, Simulation, Stage, fingerprint, search
from tests.proof.wire import Json, call_of

FIRST = 3_000
EACH = 5


@pytest.mark.parametrize("theme", THEMES)
def test_no_interleaving_breaks_a_rule(stage: Stage, theme: str) -> None:
    found = search(stage, range(FIRST, FIRST + EACH), theme)
    assert found is None, f"\n{found}"


@pytest.mark.parametrize("theme", ["fences", "batches", "joins"])
def test_a_seed_is_played_again_act_by_act(stage: Stage, theme: str) -> None:
    once = fingerprint(Simulation(stage, 3_100, theme).run())
    Simulation(stage, 3_101, theme).run()
    assert fingerprint(Simulation(stage, 3_100, theme).run()) == once


def test_the_actors_meet(stage: Stage) -> None:
    """A run without refusals, waits, lost answers and broken-off calls would prove little."""
    plays = [Simulation(stage, seed, "fences").run() for seed in range(FIRST, FIRST + 6)]
    calls = [call for play in plays for call in play.calls]
    assert {OK, FAIL, INFO} <= {call.outcome for call in calls}
    assert {"SK002", "SK006", "57014"} <= {call.sqlstate for call in calls}
    assert any(call.transaction and call.transaction.outcome == FAIL for call in calls)
    assert any(call.ended > call.began and call.outcome == OK for call in calls)
    assert any(play.waits for play in plays)


def test_a_cancel_request_made_within_a_sweep_ends_an_expired_task(stage: Stage) -> None:
    """Found by THEME=joins SEED=2: the loss of one child decides the join, whose other
    child is asked to stop, and is given back by the same sweep as if it was not."""
    stage.clear()
    low, high = f"8{'0' * 31}", f"9{'0' * 31}"
    specs = [
        {"topic": "a", "task_id": low, "max_losses": 0},
        {"topic": "a", "task_id": high, "max_losses": 5},
    ]
    wire = stage.wires[0]
    for function, arguments in (
        ("fan_out", {"specs": Json(specs), "policy": "all"}),
        ("reserve_tasks", {"topics": ["a"], "pid": "w", "max_tasks": 2, "lease": "1 second"}),
        ("sweep", {}),
    ):
        if function == "sweep":
            stage.value("select setval('proof.clock_us', 5000000)")
        answer = wire.run(call_of(function, arguments))
        assert not answer.sqlstate, answer.message
    assert stage.value("select status from sokka.all_tasks where task_id = %s", high) == "failed"
