"""How long to wait before the database is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Waits that double from ``first_s`` to ``most_s``, each spread over its upper half.

    The first wait is nearly none, so that one cut connection costs little; the
    spread keeps a fleet from coming back in step.
    """

    def __init__(
        self,
        first_s: float = 0.05,
        most_s: float = 5.0,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self.first_s, self.most_s = first_s, most_s
        self.failures = 0
        self._roll = roll

    def next_s(self) -> float:
        """The wait after one more failure."""
        # 30 doublings pass any cap; more would only overflow
        wait = min(self.most_s, self.first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return self.spread(wait)

    def spread(self, wait_s: float) -> float:
        """Some time of the upper half of this one."""
        return wait_s * (0.5 + 0.5 * self._roll())

    def reset(self) -> None:
        self.failures = 0
