"""F3, F11 and F12: the server ends connections, takes no more, or cuts statements short."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection

from tests.faults.chaos.faults import Role, Scene
from tests.faults.chaos.faults.counting import answered_with, injections, overlapping
from tests.faults.chaos.faults.firing import (
    PRODUCT,
    LogReader,
    Repeated,
    injected,
    rest,
    session,
    told,
)
from tests.faults.chaos.words import INFO, Act, Bite

_ANY = f"select pid from pg_stat_activity where {PRODUCT}"
# In its commit: it waits for the log to be written, or for a standby to say so.
_COMMITTING = (
    f"{_ANY} and (wait_event in ('SyncRep', 'WALSync', 'WALWrite')"
    " or state = 'active' and query ilike 'commit%%')"
)
_AGO_NS = 2_000_000_000  # a call that has waited for longer was stopped by something else
_WAITING_FOR_NOBODY = f"{_ANY} and wait_event = 'SyncRep'"


class Ended(Repeated):
    """pg_terminate_backend and pg_cancel_backend, most of all in the middle of a commit.

    A backend that waits for a synchronous standby has committed where it is. Ended there,
    it answers nothing: the client can't know. Where the act has no such standby, the
    server is made to wait for one that does not exist, for a moment.
    """

    name = "F3"
    period_s = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.hit = 0
        self.committing = 0

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        verb = dice.choice(("terminate", "terminate", "cancel"))
        with injected(scene, self.name, verb=verb) as shot:
            async with session(scene) as asking:
                alone = await _waits_for_no_standby(asking)
                if not alone:
                    # cancelled while it waits for its standby, PostgreSQL says that it has
                    # committed, with a warning that the standby does not know
                    verb = shot.detail["verb"] = "terminate"
                if alone and dice.random() < 0.4:
                    async with _nobody_confirms(scene, asking):
                        await asyncio.sleep(dice.uniform(0.05, 0.3))  # let some come
                        found = await self._seen(asking, _WAITING_FOR_NOBODY, 0.5)
                        found = dice.sample(found, (len(found) + 1) // 2)
                        await self._end(asking, found, verb, shot.detail)
                    self.committing += len(found)
                else:
                    found = await self._seen(asking, _COMMITTING, 0.1)
                    self.committing += bool(found)
                    every = found or await self._seen(asking, _ANY, 0)
                    chosen = dice.sample(every, min(1, len(every)))
                    await self._end(asking, chosen, verb, shot.detail)

    async def _seen(
        self, asking: AsyncConnection[Any], query: str, patience_s: float
    ) -> list[int]:
        looks = max(1, int(patience_s / 0.01))
        for _ in range(looks):
            cursor = await asking.execute(query)
            if found := [pid for (pid,) in await cursor.fetchall()]:
                return found
            await asyncio.sleep(0.005)
        return []

    async def _end(
        self, asking: AsyncConnection[Any], pids: list[int], verb: str, detail: dict[str, Any]
    ) -> None:
        detail["backends"] = pids
        for pid in pids:
            await asking.execute(f"select pg_{verb}_backend(%s)", (pid,))
        self.hit += len(pids)

    def bites(self, act: Act) -> Bite:
        told_so = answered_with(act, ("57P01", "57014"))
        hits = [shot for shot in injections(act, self.name) if shot.detail.get("backends")]
        unknown = {
            (call.process, call.number)
            for shot in hits for call in overlapping(act, shot)
            if call.outcome == INFO and call.began > shot.began - _AGO_NS
        }
        return Bite(
            self.name, len(told_so) + len(unknown),
            self.summary(
                f"{len(told_so)} calls told of it (57P01, 57014), {len(unknown)} that were under "
                f"way left in doubt; {self.hit} backends, {self.committing} of them in a commit"
            ),
        )


async def _waits_for_no_standby(asking: AsyncConnection[Any]) -> bool:
    cursor = await asking.execute("show synchronous_standby_names")
    return await cursor.fetchone() == ("",)


@asynccontextmanager
async def _nobody_confirms(scene: Scene, asking: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Every commit waits for a standby that there is not."""
    try:
        await asking.execute("alter system set synchronous_standby_names = 'nobody'")
        await asking.execute("select pg_reload_conf()")
        yield
    finally:
        # the server may have crashed meanwhile; this setting outlives it
        await told(
            scene, "alter system reset synchronous_standby_names", "select pg_reload_conf()"
        )


class Crowded(Repeated):
    """No more connections: for one role by its limit, or for all by another client."""

    name = "F11"
    period_s = 15.0
    ROLE = "chaos_few"
    FILLER = "chaos_filler"
    roles = (Role(ROLE),)
    least = 4  # for two of each sort
    _REFUSALS = (
        "too many connections for role", "too many clients already",
        "remaining connection slots are reserved",
    )

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self._all = False

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        self._all = not self._all
        log = LogReader(scene.primary)
        held_s = dice.uniform(0.5, 1.5) * scene.lease_s
        try:
            if self._all:
                async with scene.turn:  # a crash would let everybody in again
                    await self._fill(scene, held_s, until)
            else:
                await self._limit(scene, held_s, until)
        finally:
            self.refused += log.new_lines(*self._REFUSALS)

    async def _limit(self, scene: Scene, held_s: float, until: float) -> None:
        with injected(scene, self.name, self.ROLE, how="limit"):
            try:
                async with session(scene) as asking:
                    await asking.execute(f"alter role {self.ROLE} connection limit 1")
                    await self._send_away(asking, f"usename = '{self.ROLE}'")
                await rest(held_s, until)
            finally:
                await told(scene, f"alter role {self.ROLE} connection limit -1")

    async def _fill(self, scene: Scene, held_s: float, until: float) -> None:
        others: list[AsyncConnection[Any]] = []
        with injected(scene, self.name, "all", how="max_connections") as shot:
            try:
                async with session(scene) as asking:
                    await asking.execute(
                        f"do $$ begin create role {self.FILLER} login;"
                        " exception when duplicate_object then null; end $$"
                    )
                    await self._take_all(scene, others)
                    await self._send_away(asking, "usesuper is not true")
                    await self._take_all(scene, others)
                shot.detail["taken"] = len(others)
                await rest(held_s, until)
            finally:
                for other in others:
                    await other.close()

    async def _take_all(self, scene: Scene, others: list[AsyncConnection[Any]]) -> None:
        """Until the server refuses; what superusers may take is left to the harness."""

        async def one_more() -> bool:
            with suppress(psycopg.OperationalError):
                others.append(
                    await AsyncConnection.connect(
                        scene.url(self.FILLER), application_name="chaos", autocommit=True,
                        connect_timeout=5,
                    )
                )
                return True
            return False

        while all(await asyncio.gather(*(one_more() for _ in range(10)))):
            pass

    async def _send_away(self, asking: AsyncConnection[Any], which: str) -> None:
        """Some of those that are in: they must come again, and find no room."""
        await asking.execute(
            f"select pg_terminate_backend(a.pid) from pg_stat_activity a"
            f" left join pg_user u using (usename) where {PRODUCT} and {which}"
        )

    def bites(self, act: Act) -> Bite:
        seen = len(answered_with(act, ("53300",)))
        return Bite(
            self.name, self.refused + seen,
            self.summary(
                f"{self.refused} connections refused by the server's log, {seen} calls saw 53300"
            ),
        )


class ShortTime(Repeated):
    """A role whose statements, waits for locks and idle transactions are cut short.

    The settings stand for the whole act; now and then a lock is held for longer.
    """

    name = "F12"
    period_s = 4.0
    ROLE = "chaos_short"
    roles = (
        Role(
            ROLE,
            {
                "statement_timeout": "500ms", "lock_timeout": "300ms",
                "idle_in_transaction_session_timeout": "1s",
            },
        ),
    )
    _TABLES = ("sokka.tasks", "sokka.finished_tasks")

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        table = dice.choice(self._TABLES)
        # half of the time those who wait for the lock have only the longer time-out
        lock_timeout = dice.choice(("300ms", "0"))
        with injected(scene, self.name, self.ROLE, table=table):
            async with session(scene) as asking:
                await asking.execute(f"alter role {self.ROLE} set lock_timeout = '{lock_timeout}'")
                await asking.execute("set lock_timeout = '4s'")
                async with asking.transaction():
                    await asking.execute(f"lock table {table} in access exclusive mode")
                    await rest(0.8, until)

    def bites(self, act: Act) -> Bite:
        short = answered_with(act, ("57014", "55P03", "25P03"))
        return Bite(
            self.name, len(short),
            self.summary(f"{len(short)} calls ended by a time-out (57014, 55P03, 25P03)"),
        )
