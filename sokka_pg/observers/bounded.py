"""Labels whose number has a bound."""

from __future__ import annotations

import threading

OTHER = "other"
MOST = 100
LONGEST = 200


class Bounded:
    """The first ``most`` names keep theirs, all later ones are ``other``.

    A name may have several parts; they are counted, and replaced, together. So one
    process never has more than ``most`` + 1, whatever names tasks and errors bear.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, *parts: object) -> tuple[str, ...]:
        """The labels of a name."""
        name = tuple(str(part)[:LONGEST] for part in parts)
        found = self._known.get(name)
        return found if found is not None else self._admit(name)

    @property
    def known(self) -> list[tuple[str, ...]]:
        """The names that keep theirs."""
        return list(self._known)

    def _admit(self, name: tuple[str, ...]) -> tuple[str, ...]:
        with self._lock:
            if len(self._known) < self._most:
                self._known[name] = name
        return self._known.get(name, (OTHER,) * len(name))
