"""The calls that the engine asks for, made on the desk's connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic

from sokka_pg import calls, events
from sokka_pg.calls.exchanging import Exchanged
from sokka_pg.engine import words
from sokka_pg.engine.backoff import Backoff
from sokka_pg.engine.leases import Hold
from sokka_pg.engine.words import Answer
from sokka_pg.errors import BadArgument, DatabaseUnavailable, SchemaMismatch, SokkaError, UsageError
from sokka_pg.events import EventFeed
from sokka_pg.lease_keeper import LeaseKeeper
from sokka_pg.model import SweepReport, WorkLook
from sokka_pg.worker import narrate
from sokka_pg.worker.link import Link

log = logging.getLogger("sokka_pg.worker")

SWEEP_BATCH = 2000
"""Of each sort; a sweep comes twenty times a second at most, so that is what limits how fast
tasks that are due all at once can be woken."""
MARK = timedelta(seconds=240)
"""Renewed when two thirds are over. A worker that was killed leaves its mark for so long, and
who enqueues notifies nobody."""
SWEPT_WITHIN, OTHERS_SWEPT_WITHIN = timedelta(seconds=0.75), timedelta(seconds=1.25)
"""A worker sweeps if nobody has within this time: one that swept before, in less than
the time between two of its looks, so that it does so every second as long as it lives; the
others later, so that it is always the same one, whose session knows how (a first sweep
takes 5 ms, the next 1). Where it has died, another one sweeps within three seconds: there are
looks enough (``engine.desk.LOOKS_PER_S``)."""
SECOND_KEPT_S = 30.0
"""How long the second connection stays after its last call."""
ACCEPTED = Answer("ok")


class Desk:
    """Makes a call and says what came of it, whatever came."""

    def __init__(
        self, pid: str, topics: tuple[str, ...], lease: timedelta,
        keeper: LeaseKeeper, feed: EventFeed, link: Link, second: Link,
    ) -> None:
        self._pid, self._topics, self._lease = pid, topics, lease
        self._keeper, self._feed, self._link, self._second = keeper, feed, link, second
        self._second_at = 0.0
        self._failing_since: float | None = None
        self._may_look = True
        self._older_looks = False
        self._older = False

    async def open(self, patience_s: float, given_up: Callable[[], bool]) -> None:
        """Reach the database and prepare partitions.

        Tries for ``patience_s``, then raises DatabaseUnavailable; returns early
        if ``given_up``. Raises SchemaMismatch and UsageError at once.
        """
        deadline, backoff = monotonic() + patience_s, Backoff()
        while not given_up():
            try:
                await self._link.send(calls.prepare_partitions())
            except DatabaseUnavailable as error:
                if monotonic() >= deadline:
                    raise
                self._note_failure(error)
                await asyncio.sleep(backoff.next_s())
            except (SchemaMismatch, BadArgument, UsageError):
                raise
            except SokkaError as error:
                # a role that may only work, or a lock: the sweep makes partitions too
                log.warning("partitions were not prepared: %s", error)
                return
            else:
                return

    async def close(self) -> None:
        await self._link.close()
        await self._second.close()

    async def perform(self, call: words.Call) -> words.Input:
        """The answer to a call of the engine; a failure is an answer too."""
        try:
            answer = await self._answer(call)
        except SokkaError as error:
            self._note_failure(error)
            return words.CallFailed(
                refused=isinstance(error, BadArgument),
                sent=error.detail.get("sent") is not False,
                message=str(error), second=_is_second(call),
            )
        except Exception as error:
            log.exception("a call of the worker broke")
            self._note_failure(error)
            return words.CallFailed(message=type(error).__name__, second=_is_second(call))
        self._note_success()
        return answer

    async def _answer(self, call: words.Call) -> words.Input:
        if isinstance(call, words.Exchange):
            return await self._exchange(call)
        if isinstance(call, words.Sweep):
            return await self._sweep()
        if isinstance(call, words.Look):
            return await self._look(call.again)
        if isinstance(call, words.MarkIdle):
            mark = calls.mark_idle(self._topics, self._pid, MARK)
            return words.Marked(await self._link.send(mark))
        await self._link.send(calls.clear_idle(self._pid))
        return words.Cleared()

    async def _exchange(self, call: words.Exchange) -> words.Exchanged:
        settlements = call.settlements
        to_reserve = calls.reserving(call.topics, call.max_tasks, self._lease, call.limits)
        sent_at = monotonic()
        link = await self._link_for(call, sent_at)
        found = await self._send_exchange(link, partial(
            calls.exchange,
            self._pid,
            [(each.task.task_id, each.task.token) for each in settlements],
            [each.verb for each in settlements],
            [_text_of(each) for each in settlements],
            to_reserve,
        ))
        leases = found.grants
        self._keeper.add([Hold(task.task_id, task.token, sent_at) for task in leases])
        if self._feed.wanted:
            took = monotonic() - sent_at
            self._feed.emit(
                events.Called("exchange", took, settled=len(settlements), reserved=len(leases)),
                *map(narrate.reserved, leases),
            )
        answers = [
            ACCEPTED if detail is None and verdict == "ok" else Answer(verdict, detail)
            for verdict, detail in found.verdicts
        ]
        size = sum([each.size for each in leases])
        due_in_s = _first_due_in_s(settlements, answers)
        return words.Exchanged(sent_at, answers, leases, size, call.second, due_in_s)

    async def _link_for(self, call: words.Exchange, now: float) -> Link:
        if call.second:
            self._second_at = now
            return self._second
        if now - self._second_at > SECOND_KEPT_S:
            await self._second.close()
        return self._link

    async def _send_exchange(
        self, link: Link, made: Callable[..., calls.Call[Exchanged]]
    ) -> Exchanged:
        try:
            return await link.send(made(older=self._older))
        except SokkaError as error:
            if self._older or not _forbidden(error):
                raise
            log.warning("this schema has not come to revision 0005 yet: %s", error)
            self._older = True
        return await link.send(made(older=True))

    async def _sweep(self) -> words.SweepDone:
        sent_at = monotonic()
        report = await self._link.send(calls.sweep(SWEEP_BATCH))
        self._swept(report, sent_at)
        return words.SweepDone(report.woken + report.taken_back, _seconds_to(report.next_due_at))

    async def _look(self, again: bool) -> words.Looked:
        sent_at = monotonic()
        found = await self._look_around(SWEPT_WITHIN if again else OTHERS_SWEPT_WITHIN)
        if found is None:
            # An older schema, or a role that was granted what that one had: reserve to see.
            done = await self._sweep()
            return words.Looked(True, True, done.readied, done.due_in_s)
        if found.swept:
            self._swept(found, sent_at)
        return words.Looked(
            found.ready, found.swept, found.woken + found.taken_back,
            _seconds_to(found.next_due_at), found.sleepers,
        )

    async def _look_around(self, within: timedelta) -> WorkLook | None:
        """None: this schema lets us have no look that reserves nothing."""
        while self._may_look:
            try:
                return await self._link.send(
                    calls.look_around(self._topics, within, older=self._older_looks)
                )
            except SokkaError as error:
                if not _forbidden(error):
                    raise
                if self._older_looks:
                    log.warning("cannot look for work without reserving: %s", error)
                    self._may_look = False
                self._older_looks = True
        return None

    def _swept(self, report: SweepReport | WorkLook, sent_at: float) -> None:
        self._feed.emit(events.Called("sweep", monotonic() - sent_at))
        changed = (report.woken, report.taken_back, report.expired, report.failed_lost)
        if any(changed):
            self._feed.emit(events.Swept(*changed))

    def _note_failure(self, error: Exception) -> None:
        """Once per outage, however long it lasts."""
        if self._failing_since is None:
            self._failing_since = monotonic()
            log.warning("the database does not serve this worker, trying on: %s", error)
            self._feed.emit(events.Disconnected("desk", str(error)))

    def _note_success(self) -> None:
        if self._failing_since is not None:
            after = monotonic() - self._failing_since
            self._failing_since = None
            log.info("the database serves again after %.1f s", after)
            self._feed.emit(events.Reconnected("desk", after))


def _seconds_to(due_at: datetime | None) -> float | None:
    # our clock may be wrong: then the next sweep comes within a second anyway
    return None if due_at is None else (due_at - datetime.now(UTC)).total_seconds()


def _first_due_in_s(
    settlements: Sequence[words.Settlement], answers: Sequence[Answer]
) -> float | None:
    """When the first of the tasks that these put to sleep is due."""
    due = [
        datetime.fromisoformat(answer.detail["run_at"])
        for settlement, answer in zip(settlements, answers, strict=False)
        if answer.detail is not None and answer.verdict == "ok"
        and settlement.verb in _TO_SLEEP and answer.detail.get("status") == "snoozed"
    ]
    return _seconds_to(min(due)) if due else None


_TO_SLEEP = (words.Verb.RETRY, words.Verb.SNOOZE)


def _forbidden(error: SokkaError) -> bool:
    """Whether the database has no such function for us."""
    return error.detail.get("sqlstate") in ("42883", "42501")


def _is_second(call: words.Call) -> bool:
    return isinstance(call, words.Exchange) and call.second


def _text_of(settlement: words.Settlement) -> str | None:
    if settlement.arg is None and settlement.verb is words.Verb.TERMINATE:
        return None
    return calls.settlement_text(settlement)
