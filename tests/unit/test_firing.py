"""What becomes of schedules that are due: which ticks fire, and which is next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.errors import BadArgument
from sokka_pg.model import DueSchedule, ScheduleRow
from sokka_pg.schedules import durable, every, plan_fire, plan_fires, schedule_func, upcoming

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def minute(number: float) -> datetime:
    return MIDNIGHT + number * MINUTE


def due(schedule: str = "@every 5m", now: float = 5, due_at: float = 5, **more: Any) -> DueSchedule:
    """A schedule put at midnight, due at minute ``due_at``, looked at in minute ``now``."""
    found = DueSchedule(
        schedule_id=UUID(int=1), name="s", generation=1, schedule=schedule, anchor_at=MIDNIGHT,
        due_at=minute(due_at), missed="one", max_catch_up=100, grace=MINUTE, busy=False,
        repeats=None, runs=0, expires_at=None, clock=minute(now),
    )  # fmt: skip
    return replace(found, **more)


def test_a_tick_in_time_fires_and_the_next_follows_it() -> None:
    fire = plan_fire(due(now=5.1))
    assert (fire.ticks, fire.next_at, fire.skipped) == ((minute(5),), minute(10), 0)
    assert (fire.schedule_id, fire.generation, fire.due_at) == (UUID(int=1), 1, minute(5))


@pytest.mark.parametrize(
    ("missed", "ticks", "skipped"),
    [("one", [15], 2), ("all", [5, 10, 15], 0), ("skip", [], 3)],
)
def test_late_ticks_fire_by_the_policy_and_the_grid_is_kept(
    missed: str, ticks: list[int], skipped: int
) -> None:
    fire = plan_fire(due(now=17, missed=missed))
    assert fire.ticks == tuple(map(minute, ticks))
    assert (fire.next_at, fire.skipped) == (minute(20), skipped)


def test_a_minute_schedule_that_was_down_makes_up_for_each_minute() -> None:
    fire = plan_fire(due("* * * * *", now=3.5, due_at=1, missed="all"))
    assert (fire.ticks, fire.next_at) == ((minute(1), minute(2), minute(3)), minute(4))


def test_a_skipped_tick_still_fires_within_its_grace() -> None:
    fire = plan_fire(due(now=15.5, missed="skip"))
    assert (fire.ticks, fire.skipped) == ((minute(15),), 2)
    assert plan_fire(due(now=16.5, missed="skip")).ticks == ()
    assert plan_fire(due(now=16.5, missed="skip", grace=2 * MINUTE)).ticks == (minute(15),)


def test_no_more_than_allowed_are_caught_up_with_and_the_rest_is_counted() -> None:
    fire = plan_fire(due("* * * * *", now=1_000.5, due_at=1, missed="all", max_catch_up=10))
    assert fire.ticks == tuple(minute(n) for n in range(1, 11))
    assert (fire.next_at, fire.skipped) == (minute(1_001), 990)


def test_serial_ticks_stay_due_one_after_another() -> None:
    fire = plan_fire(due(now=17, missed="all", serial=True))
    assert (fire.ticks, fire.next_at, fire.skipped) == ((minute(5),), minute(10), 0)


def test_a_busy_one_is_looked_at_again() -> None:
    fire = plan_fire(due(busy=True, schedule="whatever"))
    assert (fire.busy, fire.ticks, fire.error) == (True, (), None)


def test_no_more_ticks_than_repeats_are_left() -> None:
    fire = plan_fire(due(now=60, missed="all", repeats=7, runs=5))
    assert fire.ticks == (minute(5), minute(10))


def test_the_last_tick_before_the_end_fires_though_it_is_late() -> None:
    fire = plan_fire(due(now=60, missed="one", expires_at=minute(11)))
    assert fire.ticks == (minute(10),)
    # Late is what is late by the clock, not by the end.
    assert plan_fire(due(now=60, missed="skip", expires_at=minute(10))).ticks == ()
    over = plan_fire(due(now=5, expires_at=minute(4)))
    assert (over.ticks, over.next_at) == ((), None)


def test_one_instant_fires_once_and_is_over() -> None:
    fire = plan_fire(due("@at 2026-01-01T00:05:00Z", now=60))
    assert (fire.ticks, fire.next_at) == ((minute(5),), None)


def test_a_first_tick_beside_the_grid_fires_and_the_grid_follows() -> None:
    fire = plan_fire(due("0 */10 * * * *", now=7.2, due_at=7))
    assert (fire.ticks, fire.next_at) == ((minute(7),), minute(10))


@pytest.mark.parametrize(
    ("schedule", "more"),
    [
        ("@fortnightly", {}), ("", {}), ("TZ=Mars/X * * * * *", {}),
        ("* * * * *", {"missed": "never"}),
    ],
)
def test_what_cannot_be_worked_out_is_said_and_holds_up_no_other(
    schedule: str, more: dict[str, Any]
) -> None:
    broken, fine = plan_fires([due(schedule, **more), due()])
    assert broken.error is not None and broken.error.startswith("BadArgument: ")
    assert broken.ticks == () and fine.ticks == (minute(5),)


def test_a_batch_has_a_bound_of_ticks_and_makes_progress_all_the_same() -> None:
    late = due("* * * * *", now=60, due_at=1, missed="all")
    assert len(plan_fires([late] * 5, most=120)) == 2
    assert len(plan_fires([late] * 5, most=1)) == 1
    assert len(plan_fires([late] * 5)) == 5
    assert plan_fires([]) == []


def test_years_of_missed_seconds_are_planned_at_once() -> None:
    fire = plan_fire(due("* * * * * *", now=3 * 365 * 1_440, due_at=1))
    assert fire.ticks == (minute(3 * 365 * 1_440),)
    # Counted up to a bound.
    assert fire.skipped == 1_000


@given(
    step_s=st.integers(1, 5_000), late_s=st.integers(0, 100_000),
    missed=st.sampled_from(["skip", "one", "all"]), most=st.integers(2, 50),
)
def test_each_tick_fires_or_is_skipped_and_the_next_is_ahead(
    step_s: int, late_s: int, missed: str, most: int
) -> None:
    now = late_s / 60
    fire = plan_fire(due(f"@every {step_s}s", now=now, due_at=0, missed=missed, max_catch_up=most))
    step, late = timedelta(seconds=step_s), late_s // step_s + 1
    assert fire.next_at == MIDNIGHT + late * step
    assert len(fire.ticks) <= (most if missed == "all" else 1)
    if late < 1_000:
        assert len(fire.ticks) + fire.skipped == late
    assert all((tick - MIDNIGHT) % step == timedelta(0) for tick in fire.ticks)


def test_only_what_has_a_text_can_be_stored() -> None:
    assert durable("@every 5m") == durable(every("5m")) == every("5m")
    assert durable("0 9 * * *", "Europe/Berlin").text == "TZ=Europe/Berlin 0 0 9 * * *"
    for value in (schedule_func(lambda after: None), 5, None):
        with pytest.raises(BadArgument, match="schedule"):
            durable(value)  # type: ignore[arg-type]


def row(schedule: str, next_at: float | None, **more: Any) -> ScheduleRow:
    found = dict.fromkeys(ScheduleRow.__slots__)
    found |= {
        "schedule": schedule, "next_at": None if next_at is None else minute(next_at),
        "anchor_at": MIDNIGHT, "runs": 0,
    }  # fmt: skip
    return ScheduleRow(**(found | more))


def seen(*args: Any, **more: Any) -> list[float]:
    return [(each.at - MIDNIGHT) / MINUTE for each in upcoming(*args, **more)]


def test_what_is_to_come_ends_where_the_schedule_does() -> None:
    assert seen(row("@every 5m", 5), 3) == [5, 10, 15]
    assert seen(row("@every 5m", 5, expires_at=minute(12))) == [5, 10]
    assert seen(row("@every 5m", 5, repeats=9, runs=7)) == [5, 10]
    assert seen(row("@every 5m", 5, repeats=9, runs=7), after=minute(5)) == [10]
    assert seen(row("@every 5m", 5), 2, minute(60)) == [65, 70]
    # The first one where it was put, the others where the schedule has them.
    assert seen(row("0 */10 * * * *", 7), 3) == [7, 10, 20]
    assert seen(row("@at 2026-01-01T00:05:00Z", 5)) == [5]
    assert seen(row("@every 5m", None)) == []
