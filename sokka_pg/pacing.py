"""How often progress is written: at most once per interval, and the last always."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

T = TypeVar("T")

TRY_AGAIN_S = 1.0
"""How long to wait after a write that did not work."""


class ProgressPace(Generic[T]):
    """Holds the newest value until it may be written. Pure: ``now`` comes in, in
    monotonic seconds, and values go out; None stands for no value.

    What ``take`` gave is under way until ``written`` or ``not_written``; meanwhile
    nothing else is given, so that values are written in order. The first value may
    be written at once, the next an interval after that was done.
    """

    def __init__(self, interval_s: float = 0.25) -> None:
        self.interval_s = interval_s
        self._next_at = -math.inf
        self._held: T | None = None
        self._under_way: T | None = None

    def offer(self, value: T) -> None:
        """Hold a value, in place of an older one."""
        self._held = value

    def drop(self) -> None:
        """Forget what is held: something newer was written elsewhere."""
        self._held = None

    def take(self, now: float, last: bool = False) -> T | None:
        """The value to write now, if it is time for one; ``last``: whatever the time."""
        if self._under_way is not None or (now < self._next_at and not last):
            return None
        self._under_way, self._held = self._held, None
        return self._under_way

    def written(self, now: float) -> None:
        self._under_way = None
        self._next_at = now + self.interval_s

    def not_written(self, now: float) -> None:
        """It is held again, unless there is a newer one."""
        if self._held is None:
            self._held = self._under_way
        self._under_way = None
        self._next_at = now + max(TRY_AGAIN_S, self.interval_s)

    def due_in(self, now: float) -> float | None:
        """How long until ``take`` gives something; None: not before something happens."""
        if self._held is None or self._under_way is not None:
            return None
        return max(0.0, self._next_at - now)
