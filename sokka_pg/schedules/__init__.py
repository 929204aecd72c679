"""When something is due: intervals, instants, cron expressions. Pure: no clock, no I/O.

Only the tz database is read, the system's or that of the package ``tzdata``.
"""

from __future__ import annotations

from sokka_pg.schedules.cron import Cron, Mark
from sokka_pg.schedules.firing import durable, plan_fire, plan_fires, upcoming
from sokka_pg.schedules.plain import At, DurableSchedule, Every, Schedule, ScheduleFunc
from sokka_pg.schedules.texts import Durable, at, cron, every, parse, schedule_func
from sokka_pg.schedules.ticks import (
    Missed,
    MissedPolicy,
    Occurrence,
    fires,
    missed,
    next_of,
    occurrences,
)

__all__ = [
    "At",
    "Cron",
    "Durable",
    "DurableSchedule",
    "Every",
    "Mark",
    "Missed",
    "MissedPolicy",
    "Occurrence",
    "Schedule",
    "ScheduleFunc",
    "at",
    "cron",
    "durable",
    "every",
    "fires",
    "missed",
    "next_of",
    "occurrences",
    "parse",
    "plan_fire",
    "plan_fires",
    "schedule_func",
    "upcoming",
]
