"""F9: the primary dies as if the power went, its standby takes over, and it comes back.

A failover is a flow of blocking steps in a thread; ``run`` says when. What was lost is
read from the dead primary before it may follow the new one, which undoes it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from sokka_pg.embedded import Server, all_binaries
from tests.faults.chaos import accounting, lost_primary, pair
from tests.faults.chaos.faults import Role, Scene, Way
from tests.faults.chaos.words import Bite, Injection, Loss

if TYPE_CHECKING:
    from tests.faults.chaos.words import Act

PROGRAMS = ("pg_basebackup", "pg_rewind", "pg_waldump")
MODES = ("sync", "async")
PERIOD_S = 60.0
RESUME_LIMIT_S = 30.0
LAG_S = (0.15, 0.6)
"""How long the standby's receiver stands still before the primary is killed."""
LAG_LIMIT_S = 3.0
"""Longest time to wait for a commit that is lost."""

_GRANTS = """
    select pid, extract(epoch from min(leased_at) - %(since)s)::float8 from (
        select pid, leased_at from sokka.tasks
        union all select pid, leased_at from sokka.finished_tasks
        union all select pid, leased_at from sokka.past_leases) g
     where leased_at > %(since)s and pid is not null group by pid"""
_SETTLED = """
    select extract(epoch from min(finished_at) - %(since)s)::float8
      from sokka.finished_tasks where finished_at > %(since)s and pid is not null"""
_POSITIONS = """
    select coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text,
           pg_last_wal_replay_lsn()::text"""


class Failover:
    """The acts ``sync`` and ``async``; the scene's ``primary`` changes with each."""

    name = "F9"
    roles: tuple[Role, ...] = ()
    variants: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def possible(self, scene: Scene | None) -> str | None:
        if scene is None:
            if any(_complete(each.bin_dir) for each in all_binaries()):
                return None
            return f"no PostgreSQL here has all of {', '.join(PROGRAMS)}"
        if len(scene.servers) != 2 or scene.name not in MODES:
            return "this ground has no standby"
        if not all(_complete(server.bin_dir) for server in scene.servers):
            return f"these binaries came without all of {', '.join(PROGRAMS)}"
        return None

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        raise ValueError(f"F9 puts up no worker ({variant})")

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        began = time.monotonic()
        for at in times(until - began, dice):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            async with scene.turn:
                await _to_its_end(self._fail_over, scene, dice)

    def bites(self, act: Act) -> Bite:
        resumed = [loss.resumed_s for loss in self.losses if loss.resumed_s is not None]
        rows = sum(len(loss.lost_changes) for loss in self.losses)
        gone = sum(len(accounting.lost_xids(loss)) for loss in self.losses)
        evidence = (
            f"{len(self.losses)} failovers, workers at it again after "
            f"{', '.join(f'{s:.1f} s' for s in resumed) or 'no time at all: never'}; "
            f"{gone} commits, {rows} row changes only on lost primaries"
        )
        # An asynchronous failover that lost nothing proves nothing about a lost tail.
        if act.name == "async" and not rows:
            return Bite(self.name, 0, evidence)
        return Bite(self.name, len(resumed), evidence)

    async def close(self) -> None:
        """Nothing of its own is up."""

    def _fail_over(self, scene: Scene, dice: random.Random) -> None:
        old = scene.primary
        new = next(server for server in scene.servers if server is not old)
        change = _Change(scene.name, scene.database, old, new, _names(scene))
        change.prepare()
        held_up = scene.name == "async" or dice.random() < 0.5
        try:
            change.kill(dice.uniform(*LAG_S) if held_up else 0.0)
            change.promote()
            scene.primary = new  # type: ignore[misc]  # the ground's to offer, ours to move
            change.watch_resume()
            change.account()
        finally:
            if change.loss is not None:
                self.losses.append(change.loss)
            change.bring_back()
            scene.log(change.injection())


@dataclass
class _Change:
    """One failover, step by step."""

    mode: str
    database: str
    old: Server
    new: Server
    workers: Mapping[str, int | None]
    loss: Loss | None = None
    since: Any = None
    ended: int | None = None
    noted: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        if self.mode == "sync":
            pair.make_synchronous(self.old, self.new)
        else:
            pair.caught_up(self.old)
        # For its time as a primary that is alone: with a name there, it would wait.
        pair.make_asynchronous(self.new)

    def kill(self, lag_s: float) -> None:
        receiver = pair.Receiver(self.new) if lag_s else None
        if receiver is not None:
            receiver.stop()
            self._wait_for_lag(lag_s)
        try:
            at = time.monotonic_ns()
            self.old.kill()
        finally:
            if receiver is not None:
                receiver.end()
        with pair.admin(self.new) as asking:
            row = asking.execute(_POSITIONS).fetchone()
        assert row is not None
        self.loss = Loss(self.mode, "", at, received_lsn=row[0], replayed_lsn=row[1])
        self.noted["lag_s"] = round(lag_s, 3)

    def _wait_for_lag(self, lag_s: float) -> None:
        """At least so long, and until something was committed that only the primary has.
        With a synchronous standby nobody is told of such a commit, and all soon wait."""
        end, limit = time.monotonic() + lag_s, time.monotonic() + LAG_LIMIT_S
        with pair.admin(self.old, self.database) as asking:
            first = _finished(asking)
            while time.monotonic() < end or (
                self.mode == "async" and _finished(asking) < first + 3
                and time.monotonic() < limit
            ):
                time.sleep(0.02)

    def promote(self) -> None:
        assert self.loss is not None
        with pair.admin(self.new) as asking:
            row = asking.execute("select clock_timestamp()").fetchone()
        assert row is not None
        # Before, not after: a worker may be there before the promotion is told of.
        self.since = row[0]
        self.new.promote()
        self.loss.promoted_s = (time.monotonic_ns() - self.loss.at) / 1e9

    def watch_resume(self) -> None:
        """Until every worker that is still the same process reserved, and one settled."""
        assert self.loss is not None
        limit = time.monotonic() + RESUME_LIMIT_S
        with pair.admin(self.new, self.database) as asking:
            while time.monotonic() < limit:
                granted = dict(asking.execute(_GRANTS, {"since": self.since}).fetchall())
                settled = asking.execute(_SETTLED, {"since": self.since}).fetchone()
                self.loss.resumed = {name: s for name, s in granted.items() if name in self.workers}
                if self.loss.resumed and settled and settled[0] is not None:
                    self.loss.resumed_s = max(min(self.loss.resumed.values()), settled[0])
                    if len(self.loss.resumed) >= len(self.workers):
                        return
                    limit = min(limit, time.monotonic() + 5)
                time.sleep(0.1)

    def account(self) -> None:
        """What the old primary committed, where it was left, and which rows are gone."""
        assert self.loss is not None
        switch = lost_primary.switch_of(self.new)
        self.loss.switch_lsn = switch.lsn
        self.loss.commits = lost_primary.commits_of(self.old, switch.timeline)
        with (
            lost_primary.alone(self.old) as found,
            closing(pair.admin(found, self.database)) as before,
            closing(pair.admin(self.new, self.database)) as after,
        ):
            gone = accounting.lacking(lost_primary.keys(before), set(lost_primary.keys(after)))
            self.loss.lost_changes = lost_primary.changes(before, gone)

    def bring_back(self) -> None:
        """The old primary undoes what the new one never saw, and follows it."""
        if self.old.running:
            return
        self.old.follow(self.new)
        if self.mode == "sync":
            pair.make_synchronous(self.new, self.old)
        else:
            pair.caught_up(self.new)
        self.ended = time.monotonic_ns()
        if self.loss is not None:
            self.loss.returned_s = (self.ended - self.loss.at) / 1e9

    def injection(self) -> Injection:
        loss = self.loss
        if loss is None:
            return Injection("F9", time.monotonic_ns(), about="the primary was not killed")
        told = {
            "mode": loss.mode, "received_lsn": loss.received_lsn, "switch_lsn": loss.switch_lsn,
            "promoted_s": loss.promoted_s, "resumed_s": loss.resumed_s,
            "returned_s": loss.returned_s, "lost_commits": len(accounting.lost_xids(loss)),
            "lost_changes": len(loss.lost_changes), **self.noted,
        }
        return Injection("F9", loss.at, self.ended, "the primary", told)


def times(length_s: float, dice: random.Random) -> list[float]:
    """When, within an act: every minute or so, twice in an act of half a minute, once in
    a shorter one. Early in its share of the time, for a failover takes some seconds."""
    count = max(round(length_s / PERIOD_S), 2 if length_s >= 30 else 1)
    share = length_s / count
    return [share * (n + dice.uniform(0.15, 0.35)) for n in range(count)]


async def _to_its_end(step: Any, *arguments: Any) -> None:
    """A cancelled failover is still gone through: it leaves both servers up."""
    flow = asyncio.ensure_future(asyncio.to_thread(step, *arguments))
    try:
        await asyncio.shield(flow)
    except asyncio.CancelledError:
        await flow
        raise


def _complete(folder: Any) -> bool:
    return all((folder / program).is_file() for program in PROGRAMS)


def _names(scene: Scene) -> dict[str, int | None]:
    return {each.name: each.os_pid for each in scene.crew.workers if each.os_pid is not None}


def _finished(asking: psycopg.Connection[Any]) -> int:
    row = asking.execute("select count(*) from sokka.finished_tasks").fetchone()
    assert row is not None
    return int(row[0])
