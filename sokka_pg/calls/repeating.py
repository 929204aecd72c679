"""Whether a failed call is sent again. Decides; the stores wait and send."""

from __future__ import annotations

import random
from typing import Generic, TypeVar

from sokka_pg.calls.statement import Call
from sokka_pg.errors import DatabaseUnavailable, Refused, SokkaError, TransactionConflict

T = TypeVar("T")

MOST_CONFLICTS = 8
_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 0.5


class Tries(Generic[T]):
    """The tries of one call on connections of our own.

    - A conflict (40001, 40P01) undid everything: again, up to 8 times, after a
      growing wait spread at random.
    - A connection that broke before the answer came: again once, if the call is
      repeatable. If the repeat is refused and the refusal proves that the first
      try took effect, the follow-up call reads the answer that was lost.
    """

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self._conflicts = 0
        self._lost = False

    def wait_after(self, error: SokkaError) -> float:
        """Seconds to wait before ``self.call`` is sent; raises ``error`` to give up."""
        if isinstance(error, TransactionConflict) and self._conflicts < MOST_CONFLICTS:
            self._conflicts += 1
            most = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**self._conflicts)
            return random.uniform(most / 4, most)
        if self._lost and isinstance(error, DatabaseUnavailable):
            # This try may not have been sent, but the one before it was.
            error.detail["sent"] = True
        if self._may_repeat(error):
            self._lost = True
            return 0.0
        follow_up = self._proof_of_success(error)
        if follow_up is None:
            raise error
        self.call = follow_up
        return 0.0

    def _may_repeat(self, error: SokkaError) -> bool:
        return (
            isinstance(error, DatabaseUnavailable)
            and error.detail.get("sent") is not False
            and self.call.repeatable
            and not self._lost
        )

    def _proof_of_success(self, error: SokkaError) -> Call[T] | None:
        if not self._lost or self.call.after_loss is None or not isinstance(error, Refused):
            return None
        return self.call.after_loss(error)
