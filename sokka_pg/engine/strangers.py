"""Tasks whose kind has no handler here: left for others, without a hot loop."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class _Stranger:
    delay_s: float
    grows_at: float
    forgotten_at: float


class Strangers:
    """The delay for which a task of an unknown kind is put to sleep.

    It starts at ``first_s`` and doubles up to ``most_s``, once per delay for
    each kind however many tasks come in between. A kind that stays away for
    ten delays starts again. At most ``limit`` kinds are remembered.
    """

    def __init__(self, first_s: float = 1.0, most_s: float = 60.0, limit: int = 1000) -> None:
        self.first_s, self.most_s, self.limit = first_s, most_s, limit
        self._seen: OrderedDict[str, _Stranger] = OrderedDict()

    def delay_s(self, kind: str, now: float) -> float:
        """How long a task of this kind, met at ``now``, is to sleep."""
        known = self._seen.get(kind)
        if known is None or now >= known.forgotten_at:
            known = _Stranger(self.first_s, now + self.first_s, 0.0)
        elif now >= known.grows_at:
            known.delay_s = min(self.most_s, known.delay_s * 2)
            known.grows_at = now + known.delay_s
        known.forgotten_at = now + 10 * known.delay_s
        self._seen[kind] = known
        self._seen.move_to_end(kind)
        if len(self._seen) > self.limit:
            self._seen.popitem(last=False)
        return known.delay_s

    def expected(self, now: float) -> bool:
        """Whether the kind met last may come again."""
        if not self._seen:
            return False
        return now < next(reversed(self._seen.values())).forgotten_at

    def __len__(self) -> int:
        return len(self._seen)
