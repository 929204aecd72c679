"""A worker in one event loop: the engine decides, this obeys.

Three connections: the desk (reserve, settle, sweep), the lease keeper and the
listener; one more for the desk's second calls, while there is so much to do, and one
while retention is applied. Handlers use the app's pools.
None of them is in a transaction while a handler runs, except one that the
handler asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import takewhile
from time import monotonic
from typing import Any, TypeAlias, cast

from sokka_pg import events
from sokka_pg.calls import Grant
from sokka_pg.connections import ConnectionOptions
from sokka_pg.engine import Engine, EngineSettings, words
from sokka_pg.engine.words import Reason
from sokka_pg.errors import UsageError
from sokka_pg.events import EventFeed, Observer
from sokka_pg.lease_keeper import LeaseKeeper
from sokka_pg.registry import Registry
from sokka_pg.runner import Runner, Stores
from sokka_pg.runner.children import Children
from sokka_pg.wakeup import Signals, Wakeup
from sokka_pg.worker import narrate
from sokka_pg.worker.desk import MARK, Desk
from sokka_pg.worker.housekeeping import keep_house
from sokka_pg.worker.link import Link
from sokka_pg.worker.options import WorkerOptions, new_pid, parse_topics

log = logging.getLogger("sokka_pg.worker")

SHORTEST_CALL_S, LONGEST_CALL_S = 5.0, 10.0
LAST_S = 2.0
FEW = 16
"""Runs up to which an answer is acted on at once."""

Beside: TypeAlias = Callable[[EventFeed], Coroutine[Any, Any, None]]
"""What else is done while a worker serves; cancelled when it stops."""


class Worker:
    """Reserves tasks of its topics and runs their handlers until told to stop.

    ``await run()`` returns after ``stop()`` (grace period) or ``stop(now=True)``;
    both may be called from any thread. The database may come and go meanwhile:
    the worker tries again, under the same ``pid``. ``run`` raises
    DatabaseUnavailable if it cannot be reached at all within ``startup``, and
    SchemaMismatch if the schema is missing or old.
    """

    def __init__(
        self,
        registry: Registry,
        stores: Stores,
        database_url: str,
        schema: str = "sokka",
        *,
        topics: str | Sequence[str] | Mapping[str, int],
        pid: str | None = None,
        options: WorkerOptions | None = None,
        connections: ConnectionOptions | None = None,
        observers: Iterable[Observer] = (),
        beside: Beside | None = None,
    ) -> None:
        self.options = (options or WorkerOptions()).checked()
        self.limits, self.slots = parse_topics(topics, self.options.concurrency)
        self.pid = pid or new_pid()
        self.registry = registry
        self.feed = EventFeed(observers)
        self._tells_starts = self.feed.wants(events.Started)
        self._beside = beside
        self._stores, self._url, self._schema = stores, database_url, schema
        self._connections = connections or ConnectionOptions()
        self._lease = timedelta(seconds=self.options.seconds("lease"))
        self._hashes = {
            hashlib.md5(topic.encode(), usedforsecurity=False).hexdigest()[:8]
            for topic in self.limits
        }
        self._engine = Engine(
            self._settings(), lambda task: registry.find(task) is not None
        )
        self._keeper = LeaseKeeper(
            database_url, schema, self.pid, self._lease, self,
            options=self._connections, feed=self.feed,
        )
        self._desk = Desk(
            self.pid, tuple(self.limits), self._lease, self._keeper, self.feed,
            *(Link(database_url, schema, self._connections, self._call_bound()) for _ in range(2)),
        )
        self._inbox: list[words.Input] = []
        self._rest: list[words.Command] = []
        self._next_turn: asyncio.Handle | None = None
        self._news = False
        self._finished: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._asked: words.StopAsked | None = None

    def stop(self, now: bool = False) -> None:
        """Reserve no more; let handlers end within the grace period, or tell them to
        stop at once. What did not end goes back with its attempt."""
        self._asked = words.StopAsked(now)
        self._soon(self._tell, self._asked)

    async def run(self) -> None:
        """Work until stopped. A cancellation of this call stops it at once, and is
        raised when all that could be written is written."""
        if self._loop is not None:
            raise UsageError("a worker runs once; make another")
        self._loop = asyncio.get_running_loop()
        work = self._loop.create_task(self._work(), name="sokka-worker")
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                self._tell(words.StopAsked(now=True))
                await asyncio.wait({work}, timeout=2 * self._engine.settings.final_s)
                work.cancel()
            raise

    @property
    def running(self) -> int:
        """Handlers under way."""
        return self._engine.slots.busy

    def _settings(self) -> EngineSettings:
        return EngineSettings(
            limits=self.limits, slots=self.slots, lease_s=self.options.seconds("lease"),
            prefetch_most=self.options.prefetch, exchanges=self.options.calls,
            poll_s=self.options.seconds("poll"),
            grace_s=self.options.seconds("grace"), mark_s=MARK.total_seconds(),
        )

    def _call_bound(self) -> float:
        return min(LONGEST_CALL_S, max(SHORTEST_CALL_S, self._lease.total_seconds()))

    # --- the life of a worker ---------------------------------------------

    async def _work(self) -> None:
        try:
            await self._desk.open(
                self.options.seconds("startup"), given_up=lambda: self._asked is not None
            )
            if self._asked is not None:
                self._tell(self._asked)
            await self._serve()
        finally:
            await self._desk.close()
            self.feed.close()

    async def _serve(self) -> None:
        self._runner = Runner(
            self.registry, self._stores, self.slots, self._note, self.lease_lost,
            Children(self._url, self._schema), self.feed,
        )
        self._keeper.start()
        self.feed.emit(events.WorkerStarted(self.pid, tuple(self.limits)))
        log.info("worker %s serves %s", self.pid, ", ".join(self.limits))
        try:
            async with self._wakeup():
                aside = {
                    asyncio.create_task(keep_house(self._url, self._schema, self._connections)),
                }
                if self._beside is not None:
                    aside.add(asyncio.create_task(self._beside(self.feed)))
                try:
                    await self._decide()
                finally:
                    for task in aside:
                        task.cancel()
                    await asyncio.wait(aside, timeout=LAST_S)
        finally:
            if self._next_turn is not None:
                self._next_turn.cancel()
            for call in self._calls:
                call.cancel()
            self._keeper.close()
            self._runner.close()
            self.feed.emit(events.WorkerStopped(self.pid, self._engine.unsettled))
            log.info("worker %s stopped", self.pid)

    async def _decide(self) -> None:
        """Turn by turn until the engine has finished."""
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        self._tell(words.Tick())
        await self._finished

    def _turn(self) -> None:
        """Tell the engine what happened and do what it says."""
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._next_turn, self._news = None, False
        if self._finished is None or self._finished.done():
            return
        try:
            self._obey_rest()
            inbox, self._inbox = self._inbox, []
            self._obey_all(self._engine.step(inbox or (words.Tick(),), monotonic()))
            if self._engine.finished:
                self._obey_rest()
                self._finished.set_result(None)
            elif not self._news and not self._finished.done():
                self._turn_later()
        except BaseException as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """What no turn may raise ends the worker: the loop would only log it."""
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(error)

    def _turn_later(self) -> None:
        """When the engine wants to be asked, if there is no news before."""
        now = monotonic()
        wake_at = self._engine.wake_at(now)
        if wake_at is not None and wake_at != float("inf"):
            loop = asyncio.get_running_loop()
            self._next_turn = loop.call_later(max(0.0, wake_at - now), self._turn)

    def _note(self, event: words.Input, now: bool = False) -> None:
        """Have it told in the next turn, or ``now``. In the next, others get theirs before,
        and what they finish comes along."""
        self._inbox.append(event)
        if self._finished is None or self._finished.done():
            return
        if now:
            self._turn()
        elif not self._news:
            self._news = True
            if self._next_turn is not None:
                self._next_turn.cancel()
            self._next_turn = asyncio.get_running_loop().call_soon(self._turn)

    def _tell(self, event: words.Input) -> None:
        self._note(event)
        if isinstance(event, words.StopAsked):
            log.info("worker %s is stopping%s", self.pid, " now" if event.now else "")
            self.feed.emit(events.WorkerStopping(self.pid, event.now))

    def _obey_all(self, commands: list[words.Command]) -> None:
        """Calls, which come first, are sent before the rest is done: the database works
        on them meanwhile."""
        loop = asyncio.get_running_loop()
        calls = [*takewhile(_is_call, commands)]
        for call in calls:
            made = loop.create_task(self._perform(cast(words.Call, call)))
            self._calls.add(made)
            made.add_done_callback(self._calls.discard)
        self._rest = commands[len(calls) :]
        if not calls:
            self._obey_rest()
        elif self._rest:
            loop.call_soon(self._obey_rest)

    def _obey_rest(self) -> None:
        rest, self._rest = self._rest, []
        try:
            for command in rest:
                self._obey(command)
        except BaseException as error:
            self._break(error)

    def _obey(self, command: words.Command) -> None:
        if isinstance(command, words.Run):
            if self._tells_starts:
                self.feed.emit(narrate.about(events.Started, command.task))
            self._runner.start(cast(Grant, command.task).read())
        elif isinstance(command, words.Forget):
            self._keeper.drop(command.tokens)
        elif isinstance(command, words.Settled):
            narrate.settled(command.outcomes, self.feed)
        elif isinstance(command, words.Halt):
            self._runner.halt(command.token, command.reason)

    async def _perform(self, call: words.Call) -> None:
        answer = await self._desk.perform(call)
        # many runs may have ended by the next turn: they are worth waiting for
        self._note(answer, now=len(self._engine.running) <= FEW)

    # --- notifications ----------------------------------------------------

    def _wakeup(self) -> Wakeup:
        return Wakeup(
            self._url, self._schema, listen=self.options.listen, poll=60.0,
            options=self._connections, on_change=self._listening, on_news=self._heard,
        )

    def _listening(self, ok: bool) -> None:
        self._tell(words.Listening(ok))
        self.feed.emit(
            events.Reconnected("listener", 0.0) if ok else events.Disconnected("listener", "")
        )

    def _heard(self, signals: Signals) -> None:
        if signals.missed or not self._hashes.isdisjoint(signals.topics):
            self._note(words.Woken(), now=not self._calls)
        if signals.missed or not self._hashes.isdisjoint(signals.cancels):
            self._keeper.hurry()
        if signals.missed or signals.tasks:
            self._runner.hear(signals.tasks, signals.missed)

    # --- what the keeper and the contexts tell, from any thread -----------

    def lease_lost(self, token: int, reason: str) -> None:
        """The lease is over: raise the handler's flag now, the rest on the loop."""
        attempt = self._runner.get(token)
        if attempt is not None:
            attempt.context.tell_to_stop(Reason.LOST)
        self._soon(self._lost_on_loop, token, reason)

    def cancel_requested(self, token: int) -> None:
        """Somebody asked for the task to be cancelled."""
        self._soon(self._cancel_on_loop, token)

    def _lost_on_loop(self, token: int, reason: str) -> None:
        task = self._engine.running.get(token)
        if task is not None:
            log.warning("lost lease: task %s, token %s (%s)", task.task_id, token, reason)
            self.feed.emit(narrate.about(events.Lost, task, reason=reason))
        self._tell(words.LeaseGone(token))

    def _cancel_on_loop(self, token: int) -> None:
        task = self._engine.running.get(token)
        if task is not None:
            self.feed.emit(narrate.about(events.CancelRequested, task))
            self._runner.halt(token, Reason.CANCEL)

    def _soon(self, callback: Any, *arguments: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)


def _is_call(command: words.Command) -> bool:
    return isinstance(command, words.CALLS)
