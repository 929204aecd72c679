"""Who may run: slots, limits per topic, and tasks that wait for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from sokka_pg.engine.words import Leased


class Slots:
    """``total`` handlers at a time, and no more than its limit for each topic."""

    def __init__(self, limits: Mapping[str, int], total: int) -> None:
        self.limits, self.total = dict(limits), total
        self._held: dict[int, str] = {}
        self._busy = dict.fromkeys(limits, 0)
        self._waiting: dict[str, deque[tuple[float, Leased]]] = {
            topic: deque() for topic in limits
        }
        self.waiting = 0

    @property
    def busy(self) -> int:
        return len(self._held)

    def line_up(self, task: Leased, now: float) -> None:
        """The task waits for a slot of its topic."""
        self._waiting[task.topic].append((now, task))
        self.waiting += 1

    def admit(self) -> Iterator[Leased]:
        """Give free slots to waiting tasks, topics in turn."""
        open_topics = [topic for topic, line in self._waiting.items() if line]
        while open_topics and len(self._held) < self.total:
            for topic in list(open_topics):
                if not self._waiting[topic] or self._busy[topic] >= self.limits[topic]:
                    open_topics.remove(topic)
                elif len(self._held) < self.total:
                    yield self._take(topic)

    def _take(self, topic: str) -> Leased:
        _, task = self._waiting[topic].popleft()
        self.waiting -= 1
        self._held[task.token] = topic
        self._busy[topic] += 1
        return task

    def free(self, token: int) -> None:
        """The run of this token has left its slot."""
        topic = self._held.pop(token, None)
        if topic is not None:
            self._busy[topic] -= 1

    def drop_waiting(self, token: int) -> bool:
        """A waiting task lost its lease."""
        for line in self._waiting.values():
            for entry in line:
                if entry[1].token == token:
                    line.remove(entry)
                    self.waiting -= 1
                    return True
        return False

    def send_back(self, since: float | None = None) -> list[Leased]:
        """Waiting tasks that came before ``since`` (None: all), out of their lines."""
        back: list[Leased] = []
        for line in self._waiting.values():
            while line and (since is None or line[0][0] <= since):
                back.append(line.popleft()[1])
        self.waiting -= len(back)
        return back

    def oldest_waiting_at(self) -> float | None:
        """When the task that waits longest came."""
        return min((line[0][0] for line in self._waiting.values() if line), default=None)

    def wanted(
        self, ahead: int, coming: int = 0, parts: int = 2
    ) -> tuple[int, dict[str, int]]:
        """How many tasks could be used, in all and by topic, ``ahead`` of free slots.

        ``coming``: how many another call may bring. Beyond the free slots it asks for
        one of so many ``parts`` of what it may hold: while one is worked on, the calls
        that bring the others are under way.
        """
        free = self.total - len(self._held)
        want = free - self.waiting - coming + ahead
        if ahead:
            want = min(want, max(free, -(-(self.total + ahead) // parts)))
        by_topic = {
            topic: limit - self._busy[topic] - len(self._waiting[topic]) - coming + ahead
            for topic, limit in self.limits.items()
        }
        usable = {t: min(n, want) for t, n in by_topic.items() if n > 0}
        return max(0, min(want, sum(usable.values()))), usable
