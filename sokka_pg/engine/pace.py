"""How many tasks to reserve ahead of free slots."""

from __future__ import annotations

import math


class Pace:
    """Tasks finished per second, forgotten within a second.

    What is reserved ahead waits under a lease where another worker might have
    started it. So only as much is reserved as is likely to start within
    ``ahead_s``: nothing for handlers that take long, batches for short ones.
    """

    def __init__(self, ahead_s: float = 0.1, memory_s: float = 1.0) -> None:
        self.ahead_s, self.memory_s = ahead_s, memory_s
        self._rate = 0.0
        self._at = 0.0

    def finished(self, count: int, now: float) -> None:
        """``count`` tasks ended at ``now``."""
        self._rate = self.per_second(now) + count / self.memory_s
        self._at = now

    def per_second(self, now: float) -> float:
        return self._rate * math.exp(-max(0.0, now - self._at) / self.memory_s)

    def prefetch(self, now: float, most: int) -> int:
        """How many to reserve ahead, at most ``most``."""
        return min(most, int(self.per_second(now) * self.ahead_s))
