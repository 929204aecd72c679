"""How many tasks to reserve ahead of free slots."""

from __future__ import annotations

import math

AHEAD_BYTES = 8 * 1024 * 1024
"""How many bytes of payloads are reserved ahead, about."""


SHORTEST_S = 0.05
"""The shortest time that a pace is told by."""


class Pace:
    """Tasks finished per second, forgotten within a second, and how large they are.

    What is reserved ahead waits under a lease where another worker might have
    started it. So only as much is reserved as is likely to start within
    ``ahead_s``: nothing for handlers that take long, batches for short ones, and none
    of payloads that fill more than ``ahead_bytes``.
    """

    def __init__(
        self, ahead_s: float = 0.1, memory_s: float = 1.0, ahead_bytes: int = AHEAD_BYTES
    ) -> None:
        self.ahead_s, self.memory_s, self.ahead_bytes = ahead_s, memory_s, ahead_bytes
        self._size = 0.0
        self._ended = 0.0
        self._at = self._since = -math.inf

    def finished(self, count: int, now: float, took_s: float = 0.0) -> None:
        """``count`` tasks ended at ``now``; the longest of them took so many seconds."""
        if now - self._at > self.memory_s:
            self._ended, self._since = 0.0, now - took_s
        self._ended = self._left(now) + count
        self._at = now

    def weighed(self, count: int, size: int) -> None:
        """``count`` payloads of ``size`` bytes came. Larger ones count at once; it takes
        a hundred smaller ones to forget them."""
        mean = size / count
        share = 1.0 if mean > self._size else min(1.0, count / 100)
        self._size += share * (mean - self._size)

    def per_second(self, now: float) -> float:
        """By what ended lately, over the time in which it was done: not over a whole second
        when that began a moment ago, or it would take ten thousand tasks to find the pace."""
        begun_s = max(0.0, now - self._since)
        remembered_s = self.memory_s * -math.expm1(-begun_s / self.memory_s)
        return self._left(now) / max(SHORTEST_S, remembered_s)

    def _left(self, now: float) -> float:
        return self._ended * math.exp(-max(0.0, now - self._at) / self.memory_s)

    def prefetch(self, now: float, most: int) -> int:
        """How many to reserve ahead, at most ``most``."""
        ahead = min(most, int(self.per_second(now) * self.ahead_s))
        return min(ahead, int(self.ahead_bytes / self._size)) if self._size else ahead
