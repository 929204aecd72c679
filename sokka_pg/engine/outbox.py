"""Settlements on their way to the database."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count

from sokka_pg.engine.words import Answer, Settlement, Verb

TRY_AGAIN = frozenset({"55P03", "40001", "40P01", "57014"})
"""Somebody holds the row, or the statement was a victim: nothing is wrong."""

BAD_ARGUMENT = "22023"
ALREADY_DONE = "SK002"
BATCH_BYTES = 8 * 1024 * 1024
"""A call takes no more results than this, about, unless one alone is larger."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


class Outbox:
    """What is to be written, what is under way, and what must wait a moment."""

    def __init__(self, batch: int = 500, batch_bytes: int = BATCH_BYTES) -> None:
        self.batch, self.batch_bytes = batch, batch_bytes
        self._ready: deque[Settlement] = deque()
        self._later: list[tuple[float, int, Settlement]] = []
        self._sent = 0
        self._alone = 0
        self._order = count()

    def __len__(self) -> int:
        return len(self._ready) + len(self._later) + self._sent

    @property
    def isolating(self) -> bool:
        """A batch was refused as a whole: its members go one by one."""
        return self._alone > 0

    def add(self, settlement: Settlement) -> None:
        self._ready.append(settlement)

    def next_at(self) -> float | None:
        """When a postponed settlement may be tried again."""
        return self._later[0][0] if self._later else None

    def due(self, now: float) -> bool:
        return bool(self._ready) or (bool(self._later) and self._later[0][0] <= now)

    def take(self, now: float) -> list[Settlement]:
        """The next batch; it is under way until answered, failed or refused. There may
        be several under way."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        most = min(len(self._ready), 1 if self._alone else self.batch)
        batch: list[Settlement] = []
        left = self.batch_bytes
        while len(batch) < most and (left > 0 or not batch):
            left -= self._ready[0].size
            batch.append(self._ready.popleft())
        self._alone -= min(self._alone, len(batch))
        self._sent += len(batch)
        return batch

    @property
    def left_over(self) -> int:
        """How many are ready and not under way."""
        return len(self._ready)

    def answered(
        self, sent: Sequence[Settlement], answers: Sequence[Answer], now: float
    ) -> list[tuple[Settlement, Answer]]:
        """Those of a batch that are through. The others are kept for another try."""
        self._sent -= len(sent)
        if len(answers) == len(sent) and all(answer.verdict == "ok" for answer in answers):
            return list(zip(sent, answers, strict=True))
        through: list[tuple[Settlement, Answer]] = []
        # a member without an answer was skipped: it is as if the row was busy
        padded = [*answers, *[Answer("55P03")] * (len(sent) - len(answers))]
        for settlement, answer in zip(sent, padded, strict=False):
            if answer.verdict in TRY_AGAIN:
                self._postpone(settlement, now)
            elif answer.verdict == BAD_ARGUMENT and settlement.verb is not Verb.FAIL:
                self._ready.append(unwritable(settlement, str(answer.detail or "")))
            elif is_own_success(settlement, answer):
                through.append((settlement, Answer("ok", answer.detail)))
            else:
                through.append((settlement, answer))
        return through

    def failed(self, batch: Sequence[Settlement], sent: bool) -> None:
        """The call broke; its members are first in the next."""
        self._sent -= len(batch)
        for settlement in batch:
            settlement.uncertain = settlement.uncertain or sent
        self._ready.extendleft(reversed(batch))

    def refused(
        self, blamed: Sequence[Settlement], message: str
    ) -> list[tuple[Settlement, Answer]]:
        """The call was refused for a bad argument: find the member to blame.

        Returns what can never be written.
        """
        self._sent -= len(blamed)
        if len(blamed) != 1:
            self._alone += len(blamed)
            self._ready.extendleft(reversed(blamed))
            return []
        if blamed[0].verb is Verb.FAIL:
            return [(blamed[0], Answer(BAD_ARGUMENT, {"message": message}))]
        self._ready.appendleft(unwritable(blamed[0], message))
        return []

    def _postpone(self, settlement: Settlement, now: float) -> None:
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(settlement.tries, 10))
        settlement.tries += 1
        heapq.heappush(self._later, (now + pause, next(self._order), settlement))


def is_own_success(settlement: Settlement, answer: Answer) -> bool:
    """Whether a refusal only says that this lease ended its task before: an answer
    that was lost, or a transaction of the handler's own."""
    if answer.verdict == "ok":
        return True
    detail = answer.detail or {}
    if answer.verdict == ALREADY_DONE:
        task, status = settlement.task, detail.get("status")
        ours = (detail.get("pid"), detail.get("token")) == (task.pid, task.token)
        # a lease that ran out may have been ours too: then the sweep failed the task
        return ours and (status == "terminated" or settlement.verb is Verb.FAIL)
    return settlement.uncertain and settlement.verb in (
        Verb.RETRY, Verb.SNOOZE, Verb.WAIT, Verb.RELEASE
    )


def unwritable(settlement: Settlement, message: str) -> Settlement:
    """A failure in place of an end that the database does not take."""
    code = "result_not_storable" if settlement.verb is Verb.TERMINATE else "not_settled"
    error = {"code": code, "message": f"refused by the database: {message[:500]}"}
    return Settlement(settlement.task, Verb.FAIL, error, settlement.duration_s)
