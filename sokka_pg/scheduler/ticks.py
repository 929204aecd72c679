"""When a job is due: asked with the scheduler's clock, which may jump. Pure."""

from __future__ import annotations

from datetime import datetime

from sokka_pg.schedules import Every, Schedule, missed, next_of


class Ticks:
    """The ticks of one schedule from ``start`` on.

    Intervals without an anchor are counted from ``start``, and from the scheduled
    times, not from those of the runs. Of ticks that were missed the newest one fires,
    late; the others never do. Raises BadArgument for a schedule that does not advance,
    and whatever else the schedule raises.
    """

    def __init__(self, schedule: Schedule, start: datetime) -> None:
        self._schedule = schedule.anchored(start) if isinstance(schedule, Every) else schedule
        self.due_at: datetime | None = next_of(self._schedule, start)
        """The next tick; None when the schedule is over."""

    def take(self, now: datetime) -> datetime | None:
        """The tick that fires at ``now``, if one does; ``due_at`` is then a later one."""
        if self.due_at is None or self.due_at > now:
            return None
        found = missed(self._schedule, self.due_at, now, "one")
        self.due_at = found.next_at
        if self.due_at is not None and self.due_at <= now:
            # more ticks than can be walked through: no burst, go on from here
            self.due_at = next_of(self._schedule, now)
        return found.fires[0]
