"""What a worker does next.

    reserved ──> waiting for a slot ──> running ──> outbox ──> settled
                     │ too long, stop      │ lease gone
                     └──> outbox (release) └──> nothing to write

One call to the database is under way at a time. The usual one settles what
ended since the last and reserves what the free slots can take, in one commit:
while it is out, ends gather for the next. Where that would be many, a second such call
goes out beside it: the database works on it while the answer to the first is read and
the next is made. A call that comes back short of tasks
ends the hunger for more, until a notification, a poll, a sweep that readied
something, or a new mark as idle (after which one more look is owed). Every second a worker
looks, by a call that costs the database little and takes nothing, whether anybody has swept,
else it does; who has nothing to do polls by that call too. It sweeps in any case when it knows
of something that is due.

Every time is monotonic and comes in as ``now``; nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sokka_pg.engine import words
from sokka_pg.engine.backoff import Backoff
from sokka_pg.engine.outbox import Outbox
from sokka_pg.engine.pace import Pace
from sokka_pg.engine.slots import Slots
from sokka_pg.engine.strangers import Strangers
from sokka_pg.engine.words import (
    Answer,
    Call,
    Command,
    Input,
    Leased,
    Reason,
    Settlement,
    Verb,
)

WAITING_MOST_S = 1.0
"""A task reserved ahead that found no slot for so long goes back."""

FIRST_POLL_S, TOLD_POLL_S = 0.02, 0.1
STREAM_PER_S, STREAM_POLL_S = 200, 0.002
"""From so many tasks a second on, one who keeps up with them polls instead of being notified
of each: every NOTIFY holds up the commits of all who enqueue."""
STREAM_WAKES = 10
"""So many notifications since the mark was made show a stream; a bulk is announced by one."""
EMPTY_TO_IDLE, EMPTY_TO_IDLE_IN_STREAM = 2, 5
"""After so many answers without a task in a row a worker is idle. A stream of 200 a second
has no gap of the 60 ms that the polls of five take."""
BUSY_PRODUCERS_S = 0.05
JOIN_SWEEP_S = 0.1
"""How soon after the end of a candidate to sweep: where two of them end at one
instant, their join is left to the sweep, and somebody waits for it."""
POLITE_S = 0.1
REST, LONG_REST, RESTS = 2, 3, 3
"""How many times as long one waits who would be notified, or wants nothing, and saw that another
had swept just now: that one comes back in time. Who sees so for the fourth time in a row is one
of many."""
LOOKS_PER_S, LONGEST_REST = 2, 30
"""Many look about so often together, however many they are: whoever sweeps looks for all of
them, and where that one has died the next look comes soon. Each of a hundred looks every 15 to
30 seconds: longer would not save much, and is how long one whose connection for notifications
has died unnoticed does without."""
SHORTEST_SWEEP_S = 0.05
SECOND_LEAST, SECOND_MOST = 64, 300
"""A second call goes out for a third of what may be held, within these: fewer settlements
or new tasks are better left to gather for the first, where they share its commit (27 k
tasks a second without a second call, 34 k where it may bring 150, 36 k with 300)."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """``limits``: slots by topic; ``slots``: in all. The rest are seconds,
    except ``prefetch_most``, in tasks, and ``exchanges``: how many may be under way."""

    limits: Mapping[str, int]
    slots: int
    lease_s: float = 30.0
    prefetch_most: int = 1000
    exchanges: int = 2
    poll_s: float = 1.0
    sweep_s: float = 1.0
    mark_s: float = 60.0
    grace_s: float = 30.0
    final_s: float = 10.0


@dataclass(slots=True)
class _Timers:
    retry_at: float = 0.0
    sweep_at: float = 0.0
    due: bool = True
    """Whether something is due at ``sweep_at`` that a sweep of ours has seen; at the start
    anything may be."""
    asked_at: float = math.inf
    """When a sweep was asked for, since the last one was sent."""
    poll_at: float = 0.0
    marked_until: float = 0.0
    grace_at: float | None = None
    final_at: float | None = None


@dataclass(slots=True)
class _Hunger:
    """Whether the database may have more for us."""

    hungry: bool = True
    empty: int = 0
    woken: bool = False
    wakes: int = 0
    """Notifications since the mark as idle was made."""
    sweeps: bool = False
    """Whether it swept when it last could."""
    rests: int = 0
    """How many times in a row it rested."""
    listening: bool = False


@dataclass(slots=True)
class Engine:
    """The state machine. ``known``: whether a task has a handler here."""

    settings: EngineSettings
    known: Callable[[Leased], bool]
    backoff: Backoff = field(default_factory=Backoff)
    strangers: Strangers = field(default_factory=Strangers)

    stopping: bool = field(default=False, init=False)
    finished: bool = field(default=False, init=False)
    slots: Slots = field(init=False)
    outbox: Outbox = field(default_factory=Outbox, init=False)
    running: dict[int, Leased] = field(default_factory=dict, init=False)
    _pace: Pace = field(default_factory=Pace, init=False)
    _timers: _Timers = field(default_factory=_Timers, init=False)
    _hunger: _Hunger = field(default_factory=_Hunger, init=False)
    _call: Call | None = field(default=None, init=False)
    _second: words.Exchange | None = field(default=None, init=False)
    _in_twos: bool = field(init=False)
    """Whether two exchanges may be under way. Not where a topic has one slot: its tasks
    start in their order, and two answers may come in any."""
    _out: list[Command] = field(default_factory=list, init=False)
    _ends: int = field(default=0, init=False)
    _longest_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.slots = Slots(self.settings.limits, self.settings.slots)
        least = min(self.settings.slots, *self.settings.limits.values())
        self._in_twos = self.settings.exchanges > 1 and least > 1

    @property
    def unsettled(self) -> int:
        """Leases whose end is not written."""
        return len(self.running) + self.slots.waiting + len(self.outbox)

    def step(self, events: Iterable[Input], now: float) -> list[Command]:
        """Take in what happened; say what to do now.

        Ends that come together are settled together, so they come as one batch. A call
        comes first: the database works on it while the rest is done.
        """
        self._out = []
        for event in events:
            cast("Callable[..., None]", _HANDLERS[type(event)])(self, event, now)
        if self._ends:
            self._pace.finished(self._ends, now, self._longest_s)
            self._ends, self._longest_s = 0, 0.0
        self._stop_if_due(now)
        self._send_back_waiting(now)
        self._start_waiting()
        self._place_call(now)
        self._place_second(now)
        self._finish_if_done(now)
        return self._out

    def wake_at(self, now: float) -> float | None:
        """When the next ``Tick`` is due if nothing else happens; None: not at all."""
        if self.finished:
            return None
        times = [self._timers.final_at or self._timers.grace_at]
        waiting_since = self.slots.oldest_waiting_at()
        if waiting_since is not None:
            times.append(waiting_since + WAITING_MOST_S)
        if self._call is None:
            times.append(max(self._next_call_at(now), self._timers.retry_at))
        known = [time for time in times if time is not None]
        return min(known) if known else None

    # --- what happened ----------------------------------------------------

    def _ticked(self, event: words.Tick, now: float) -> None:
        pass

    def _woken(self, event: words.Woken, now: float) -> None:
        self._hunger.wakes += 1
        self._look(now)

    def _listening(self, event: words.Listening, now: float) -> None:
        if event.ok and not self._hunger.listening:
            self._look(now)
        if not event.ok:
            # marks are in an unlogged table: a server that crashed has lost them
            self._timers.marked_until = 0.0
        self._hunger.listening = event.ok
        self._timers.poll_at = now + self._poll_delay(now)

    def _ended(self, event: words.Ended, now: float) -> None:
        task = self.running.pop(event.token, None)
        if event.freed:
            self.slots.free(event.token)
        if task is None:
            return
        if event.settlement is None:
            self._out.append(words.Forget([event.token]))
            self._sweep_for_join(task, now)
            return
        self._ends += 1
        self._longest_s = max(self._longest_s, event.settlement.duration_s)
        self.outbox.add(event.settlement)

    def _exchanged(self, event: words.Exchanged, now: float) -> None:
        call = self._exchange_returned(event.second)
        self.backoff.reset()
        through = self.outbox.answered(call.settlements if call else (), event.answers, now)
        self._settled(through)
        for task in event.leases:
            self._received(task, event.sent_at, now)
        if event.leases:
            self._pace.weighed(len(event.leases), event.size)
        if call is not None and call.max_tasks > 0:
            self._fed(len(event.leases), call.max_tasks, now)
        if event.due_in_s is not None and event.due_in_s < self.settings.sweep_s:
            self._sweep_by(now + max(SHORTEST_SWEEP_S, event.due_in_s))
        for settlement, answer in through:
            if settlement.task.candidate is not None:
                self._sweep_for_join(settlement.task, now)
            if settlement.verb is Verb.WAIT and (answer.detail or {}).get("status") == "starting":
                self._look(now)

    def _sweep_for_join(self, task: Leased, now: float) -> None:
        if task.candidate is not None:
            self._sweep_by(now + JOIN_SWEEP_S)

    def _sweep_by(self, at: float) -> None:
        self._timers.asked_at = min(self._timers.asked_at, at)
        self._timers.sweep_at = min(self._timers.sweep_at, at)
        self._timers.due = True

    def _fed(self, got: int, asked: int, now: float) -> None:
        full = got >= asked
        self._hunger.empty = 0 if got else self._hunger.empty + 1
        self._hunger.hungry = full or self._hunger.woken
        self._hunger.woken = False
        self._timers.poll_at = now + self._poll_delay(now)

    def _received(self, task: Leased, sent_at: float, now: float) -> None:
        late = now - sent_at > self.settings.lease_s / 2
        if self.stopping or late or task.topic not in self.settings.limits:
            self._release(task, "late" if late else "stop")
        elif not self.known(task):
            delay = self.strangers.delay_s(task.kind, now)
            self.outbox.add(Settlement(task, Verb.SNOOZE, delay, reason="unknown_kind"))
        else:
            self.slots.line_up(task, now)

    def _swept(self, event: words.SweepDone, now: float) -> None:
        self._returned()
        self._hunger.sweeps = True
        self.backoff.reset()
        self._sweep_next(event.due_in_s, True, now)
        if event.readied:
            self._look(now)

    def _looked(self, event: words.Looked, now: float) -> None:
        self._returned()
        self.backoff.reset()
        self._hunger.empty += 1
        self._hunger.sweeps = event.swept
        told, full = self._told(now), not self._wants_more(now)
        rests = not event.swept and (full or (told and not event.ready))
        self._hunger.rests = self._hunger.rests + 1 if rests else 0
        times = self._rest(event.sleepers if told else 0) if rests else 1
        # who is not told polls as ever when a slot comes free
        self._timers.poll_at = now + self._poll_delay(now, times if told else 1)
        self._sweep_next(event.due_in_s, event.swept, now, times)
        if event.ready and event.readied:
            self._look(now)
        elif event.ready:
            # as at a poll; still idle until something comes, for others may be quicker
            self._hunger.hungry = True

    def _rest(self, sleepers: int) -> float:
        """How many times as long as else, for one who rests beside so many others."""
        if self._hunger.rests <= RESTS:
            return REST
        # Spread: those that started together must not look together.
        long = self.backoff.spread(min(LONGEST_REST, sleepers / LOOKS_PER_S))
        return max(LONG_REST, long)

    def _sweep_next(
        self, due_in_s: float | None, swept: bool, now: float, times: float = 1
    ) -> None:
        wait = self.settings.sweep_s * times
        if due_in_s is not None:
            wait = min(wait, max(SHORTEST_SWEEP_S, due_in_s))
        if swept or not self._timers.due:
            self._timers.sweep_at = now + wait
            self._timers.due = swept and wait < self.settings.sweep_s
        else:
            # a look that did not sweep knows nothing of what our last sweep saw coming
            self._timers.sweep_at = min(self._timers.sweep_at, now + wait)
        if self._timers.asked_at < math.inf:
            # while this one was under way
            self._sweep_by(self._timers.asked_at)

    def _marked(self, event: words.Marked, now: float) -> None:
        self._returned()
        self.backoff.reset()
        if event.ok:
            # a task that came between the last look and the mark told nobody; one that came
            # before an old mark was over did
            self._hunger.hungry = self._hunger.hungry or self._timers.marked_until <= now
            self._timers.marked_until = now + self.settings.mark_s
            self._hunger.wakes = 0
        else:
            # one more look before the next try, or this would spin
            self._hunger.empty = self._empty_to_idle(now) - 1
            self._timers.poll_at = now + BUSY_PRODUCERS_S

    def _cleared(self, event: words.Cleared, now: float) -> None:
        self._returned()
        self._timers.marked_until = 0.0

    def _call_failed(self, event: words.CallFailed, now: float) -> None:
        call = self._exchange_returned(True) if event.second else self._returned()
        if isinstance(call, words.ClearIdle):
            self._timers.marked_until = 0.0
        if isinstance(call, words.Exchange) and call.settlements:
            if event.refused:
                self._settled(self.outbox.refused(call.settlements, event.message))
                return
            self.outbox.failed(call.settlements, event.sent)
        self._timers.retry_at = now + self.backoff.next_s()

    def _lease_gone(self, event: words.LeaseGone, now: float) -> None:
        if self.running.pop(event.token, None) is not None:
            self._out.append(words.Halt(event.token, Reason.LOST))
        else:
            self.slots.drop_waiting(event.token)

    def _stop_asked(self, event: words.StopAsked, now: float) -> None:
        self.stopping = True
        if event.now:
            self._timers.grace_at = now
        elif self._timers.grace_at is None:
            self._timers.grace_at = now + self.settings.grace_s

    def _look(self, now: float) -> None:
        """There may be work. One who has met tasks for others lets them go first, or
        it would take those again and again from under their eyes."""
        self._hunger.empty = 0
        if self.strangers.expected(now):
            self._timers.poll_at = min(self._timers.poll_at, now + POLITE_S)
        else:
            self._hunger.hungry = True
            # an answer under way may have looked before the task was there
            self._hunger.woken = any(self._exchanges())

    # --- what follows -----------------------------------------------------

    def _returned(self) -> Call | None:
        call, self._call = self._call, None
        return call

    def _exchange_returned(self, second: bool) -> words.Exchange | None:
        if not second:
            call = self._returned()
            return call if isinstance(call, words.Exchange) else None
        found, self._second = self._second, None
        return found

    def _settled(self, outcomes: list[tuple[Settlement, Answer]]) -> None:
        if outcomes:
            self._out.append(words.Forget([s.task.token for s, _ in outcomes]))
            self._out.append(words.Settled(outcomes))

    def _release(self, task: Leased, reason: str) -> None:
        self.outbox.add(Settlement(task, Verb.RELEASE, reason=reason))

    def _stop_if_due(self, now: float) -> None:
        grace_at = self._timers.grace_at
        if grace_at is None or now < grace_at or self._timers.final_at is not None:
            return
        self._timers.final_at = now + self.settings.final_s
        self._out.extend(words.Halt(token, Reason.STOP) for token in self.running)

    def _send_back_waiting(self, now: float) -> None:
        if not self.slots.waiting:
            return
        since = None if self.stopping else now - WAITING_MOST_S
        for task in self.slots.send_back(since):
            self._release(task, "stop" if self.stopping else "no_slot")

    def _start_waiting(self) -> None:
        if not self.slots.waiting:
            return
        for task in self.slots.admit():
            self.running[task.token] = task
            self._out.append(words.Run(task))

    def _place_call(self, now: float) -> None:
        if self._call is not None or self.finished or now < self._timers.retry_at:
            return
        self._call = self._choose_call(now)
        if isinstance(self._call, words.Sweep | words.Look):
            self._timers.asked_at = math.inf
        if self._call is not None:
            self._out.insert(0, self._call)

    def _place_second(self, now: float) -> None:
        """A second exchange beside one that is under way, if there is much to exchange."""
        alone = self._second is None and isinstance(self._call, words.Exchange)
        if not alone or not self._in_twos or self.outbox.isolating or now < self._timers.retry_at:
            return
        ahead = self._ahead(now)
        many = min(SECOND_MOST, max(SECOND_LEAST, (self.settings.slots + ahead) // 3))
        want = self._wanted(now)[0] if self._hunger.hungry and not self.stopping else 0
        if max(want, self.outbox.left_over) >= many:
            self._second = replace(self._exchange(now, want > 0), second=True)
            self._out.insert(0, self._second)

    def _choose_call(self, now: float) -> Call | None:
        if not self.stopping and now >= self._timers.sweep_at:
            return words.Sweep() if self._timers.due else words.Look(self._hunger.sweeps)
        if self._idle(now) and now >= self._timers.poll_at:
            return words.Look(self._hunger.sweeps)
        if self._is_told_of_a_stream(now):
            return words.ClearIdle()
        reserve = self._wants_more(now)
        if self.outbox.due(now) or (reserve and self._hungry(now)):
            return self._exchange(now, reserve)
        if self.stopping:
            return words.ClearIdle() if self._timers.marked_until and not self.unsettled else None
        if self._should_mark(now):
            return words.MarkIdle()
        if self._timers.marked_until > now and self._hunger.hungry:
            # no free slot and more to come: notifications would only disturb
            return words.ClearIdle()
        return None

    def _exchange(self, now: float, reserve: bool) -> words.Exchange:
        settlements = self.outbox.take(now)
        if not reserve or self.outbox.isolating:
            return words.Exchange(settlements, (), (), 0)
        want, by_topic = self._wanted(now)
        # what is too large for one call must not grow in number meanwhile
        want = max(0, want - self.outbox.left_over)
        if not want:
            return words.Exchange(settlements, (), (), 0)
        return words.Exchange(settlements, tuple(by_topic), tuple(by_topic.values()), want)

    def _wanted(self, now: float) -> tuple[int, dict[str, int]]:
        coming = sum(call.max_tasks for call in self._exchanges())
        ahead = self._ahead(now)
        return self.slots.wanted(ahead, coming, 3 if self._in_twos else 2)

    def _ahead(self, now: float) -> int:
        return self._pace.prefetch(now, self.settings.prefetch_most)

    def _exchanges(self) -> Iterator[words.Exchange]:
        """Those under way."""
        if isinstance(self._call, words.Exchange):
            yield self._call
        if self._second is not None:
            yield self._second

    def _wants_more(self, now: float) -> bool:
        return not self.stopping and self._wanted(now)[0] > 0

    def _idle(self, now: float) -> bool:
        """Nothing here that will end, and nothing known of that could be taken."""
        return self._found_nothing(now) and not self._hunger.hungry and not self.unsettled

    def _found_nothing(self, now: float) -> bool:
        """Often enough in a row, with slots to spare."""
        return self._hunger.empty >= self._empty_to_idle(now) and self._wants_more(now)

    def _empty_to_idle(self, now: float) -> int:
        return EMPTY_TO_IDLE_IN_STREAM if self._in_stream(now) else EMPTY_TO_IDLE

    def _in_stream(self, now: float) -> bool:
        return self._pace.per_second(now) >= STREAM_PER_S

    def _is_told_of_a_stream(self, now: float) -> bool:
        """Notified again and again of what it would find by itself."""
        told = self._told(now) and self._hunger.wakes >= STREAM_WAKES
        return told and not self.stopping and self._in_stream(now)

    def _hungry(self, now: float) -> bool:
        return self._hunger.hungry or now >= self._timers.poll_at

    def _should_mark(self, now: float) -> bool:
        old = self._timers.marked_until - now < self.settings.mark_s / 3
        return old and self._hunger.listening and self._found_nothing(now)

    def _told(self, now: float) -> bool:
        return self._hunger.listening and self._timers.marked_until > now

    def _poll_delay(self, now: float, times: float = 1) -> float:
        """Polls thin out while nothing comes, faster when a notification would tell.

        Not at once even then: a reserve looks for late commits only every second or
        so, and the task that a notification announced may be one.
        """
        first = FIRST_POLL_S
        if self._told(now):
            first = TOLD_POLL_S
        elif self._in_stream(now):
            first = STREAM_POLL_S
        most = self.settings.poll_s * times
        return float(min(most, first * 2.0 ** min(self._hunger.empty, 20)))

    def _next_call_at(self, now: float) -> float:
        if self.outbox.due(now):
            return now
        times = [self.outbox.next_at()]
        if not self.stopping:
            times.append(self._timers.sweep_at)
        if self._wants_more(now):
            times.append(now if self._hunger.hungry else self._timers.poll_at)
        known = [time for time in times if time is not None]
        return min(known) if known else float("inf")

    def _finish_if_done(self, now: float) -> None:
        if not self.stopping:
            return
        late = self._timers.final_at is not None and now >= self._timers.final_at
        settled = not self.unsettled and self._call is None and self._second is None
        self.finished = self.finished or settled or late


_HANDLERS: dict[type[Any], Any] = {
    words.Tick: Engine._ticked,
    words.Woken: Engine._woken,
    words.Listening: Engine._listening,
    words.Ended: Engine._ended,
    words.Exchanged: Engine._exchanged,
    words.SweepDone: Engine._swept,
    words.Looked: Engine._looked,
    words.Marked: Engine._marked,
    words.Cleared: Engine._cleared,
    words.CallFailed: Engine._call_failed,
    words.LeaseGone: Engine._lease_gone,
    words.StopAsked: Engine._stop_asked,
}
