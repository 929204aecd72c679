"""When to extend a lease, and when to give it up: arithmetic on the monotonic clock.

Every lease here ends, for this process, a lease length after the moment
*before* the request that granted or renewed it was sent. The database counted
from later, so this end always comes first: a process that cannot renew stops
by itself before anyone else may start. The wall clock plays no part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

SHORTEST_LEASE_S = 0.3
"""Workers refuse shorter leases: three renewals and a round trip must fit."""

BEATS_PER_LEASE = 5
MARGIN_SHARE = 0.1
LONGEST_MARGIN_S = 1.0


@dataclass(slots=True)
class Hold:
    """A lease of this process. ``sent_at``: monotonic, before its last renewal."""

    task_id: UUID
    token: int
    sent_at: float
    cancel_told: bool = False


class LeaseBook:
    """The live leases of one process, by token.

    A beat comes ``BEATS_PER_LEASE`` times per lease and extends all that were
    not renewed for half a beat; so none gets older than three tenths of its
    lease while the database answers, and a task of a few milliseconds is never
    extended at all.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.beat_s = lease_s / BEATS_PER_LEASE
        self.margin_s = min(LONGEST_MARGIN_S, lease_s * MARGIN_SHARE)
        self._holds: dict[int, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, token: object) -> bool:
        return token in self._holds

    def add(self, holds: Iterable[Hold]) -> None:
        for hold in holds:
            self._holds[hold.token] = hold

    def drop(self, tokens: Iterable[int]) -> list[Hold]:
        """Forget these leases; the ones that were known."""
        dropped = (self._holds.pop(token, None) for token in tokens)
        return [hold for hold in dropped if hold is not None]

    def get(self, token: int) -> Hold | None:
        return self._holds.get(token)

    def to_extend(self, now: float, limit: int = 5000) -> list[Hold]:
        """What this beat extends, the longest not renewed first."""
        young = now - self.beat_s / 2
        old = [hold for hold in self._holds.values() if hold.sent_at <= young]
        return sorted(old, key=lambda hold: hold.sent_at)[:limit]

    def renewed(self, tokens: Iterable[int], sent_at: float) -> None:
        """The database renewed these; the request left after ``sent_at``."""
        for token in tokens:
            hold = self._holds.get(token)
            if hold is not None:
                hold.sent_at = max(hold.sent_at, sent_at)

    def ends_at(self, hold: Hold) -> float:
        """When this process gives the lease up: a margin before its end."""
        return hold.sent_at + self.lease_s - self.margin_s

    def overdue(self, now: float) -> list[Hold]:
        """Leases to give up now. They are forgotten."""
        late = [hold.token for hold in self._holds.values() if self.ends_at(hold) <= now]
        return self.drop(late)

    def next_end(self) -> float | None:
        """When the next lease would have to be given up."""
        first = min((hold.sent_at for hold in self._holds.values()), default=None)
        return None if first is None else first + self.lease_s - self.margin_s
