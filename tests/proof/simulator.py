"""A deterministic simulation on a real server.

Actors, each with a connection of its own, call the functions of the queue one statement at
a time, in an order drawn from a seed, some of them inside open transactions. The clock is
moved by hand. A statement that waits for a lock is seen to wait, in pg_blocking_pids; the
others go on, and it is looked at again after each of their acts. Nothing depends on real
time or on chance outside the seed, so a seed is an interleaving.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from tests.brief import spelled_out

from . import witness
from .checker import check, shortest
from .history import FAIL, INFO, OK, Call, Change, Fault, History, Tick, Transaction
from .moves import CATALOGUE, TOPICS, Actor, Ask, Entry, Held, Lease, World
from .mutants import Mutant
from .wire import DEADLINE_S, Answer, Wire, call_of

STEPS = 45
DRAIN_ROUNDS = 30
SECOND = 1_000_000
EMPTY = (
    "vacuum sokka.tasks, sokka.joins, sokka.join_inbox, sokka.locks, sokka.schedules, sokka.streams"
)
PAGES = """select sum(pg_relation_size(t::regclass)) from unnest(array[
    'sokka.tasks', 'sokka.joins', 'sokka.join_inbox', 'sokka.locks', 'sokka.schedules',
    'sokka.streams']) t"""
# How long an answer may take before a look whether it waits for a lock.
LOOK_S = 0.003

# What an interleaving is about: how much more often moves of these tags are drawn.
THEMES: dict[str, dict[str, float]] = {
    "queue": {"queue": 3, "operator": 2, "cancel": 1},
    "fences": {"queue": 2, "fence": 12, "operator": 2, "cancel": 2},
    "cancels": {"queue": 2, "cancel": 5, "operator": 1},
    "batches": {"batch": 4, "queue": 1, "operator": 1},
    "joins": {"join": 4, "queue": 1.5, "batch": 1, "cancel": 2},
    "streams": {"stream": 4, "queue": 1},
    "locks": {"lock": 4},
    "schedules": {"schedule": 4, "queue": 0.5},
    "all": {
        "queue": 1,
        "fence": 2,
        "batch": 1,
        "join": 1,
        "stream": 1,
        "lock": 1,
        "schedule": 1,
        "operator": 1,
        "cancel": 1,
    },
}
SHARES = {"producer": 0.4, "operator": 1.0, "worker": 1.2}
# How often an actor opens a transaction, instead of calling in none.
OPENING = 0.25


def theme_of(seed: int) -> str:
    return list(THEMES)[seed % len(THEMES)]


class Stage:
    """A database with the witness in it, and the connections of the actors."""

    def __init__(self, url: str) -> None:
        self.observer = psycopg.connect(url, autocommit=True)
        self.wires = [Wire(url) for _ in range(7)]

    def value(self, query: str, *params: Any) -> Any:
        row = self.observer.execute(query.encode(), params or None).fetchone()
        return row[0] if row else None

    def clear(self) -> None:
        for wire in self.wires:
            wire.leave()
        self.observer.execute("select proof.forget()")
        # Where rows lie decides in which order a statement meets them.
        for _ in range(1000):
            self.observer.execute(EMPTY)
            # Not empty as long as somebody, such as ANALYZE, holds an older snapshot.
            if not self.value(PAGES):
                break
        else:
            raise AssertionError("somebody holds an old snapshot")
        for wire in self.wires:
            wire.run("reset all")

    def read(self) -> list[Change]:
        return witness.read(self.observer)

    def close(self) -> None:
        for wire in self.wires:
            wire.close()
        self.observer.close()


@dataclass
class Player:
    """An actor on the stage: its connection, its transaction, the call it waits for."""

    actor: Actor
    wire: Wire
    moves: list[Entry]
    weights: list[float]
    transaction: Transaction | None = None
    broken: bool = False
    waiting: Call | None = None
    ask: Ask | None = None
    again: Ask | None = None
    fences: list[Lease] = field(default_factory=list)
    locks: list[Held] = field(default_factory=list)


class Simulation:
    """One interleaving, from one seed."""

    def __init__(self, stage: Stage, seed: int, theme: str | None = None, steps: int = STEPS):
        self.stage = stage
        self.seed = seed
        self.theme = theme or theme_of(seed)
        self.chance = Random(seed)
        self.steps = steps
        self.step = 0
        self.history = History()
        self.world = World(self.chance)
        self.world.look = self._look
        if self.chance.random() < 0.5:
            self.world.topics = TOPICS[:1]
        openings = (0.0, OPENING, 2 * OPENING)
        self.opening = self.chance.choice(
            openings[-1:] if self.theme in ("fences", "cancels") else openings
        )
        self.players: list[Player] = []
        self.waiters: list[Player] = []
        self._transactions = 0

    # The play

    def run(self) -> History:
        self.stage.clear()
        self._cast()
        self._prepare()
        for _ in range(self.steps):
            self.step += 1
            self._act()
            self._look_at_waiters()
        self._close_all()
        self._drain()
        self.history.changes = self.stage.read()
        return self.history

    def _cast(self) -> None:
        workers = [f"w{n}" for n in range(1, self.chance.choice((2, 2, 3, 4)) + 1)]
        for name in ("producer", "operator", *workers):
            role = name if name in ("producer", "operator") else "worker"
            entries = [e for e in CATALOGUE if e.role == role and self._weight(e) > 0]
            if entries:
                self.players.append(
                    Player(
                        Actor(name, role, self.world),
                        self.stage.wires[len(self.players)],
                        entries,
                        [self._weight(e) for e in entries],
                    )
                )

    def _prepare(self) -> None:
        """Something to work on: a play without tasks shows little."""
        producer = self.players[0]
        made = {"joins": "fan_out", "schedules": "put_schedule"}.get(self.theme, "create_task")
        for entry in producer.moves:
            if entry.name == made:
                for _ in range(self.chance.choice((1, 2))):
                    self.step += 1
                    ask = entry.move(producer.actor)
                    assert ask is not None
                    self._send(producer, ask, call_of(ask.function, ask.arguments))
        for player in self.players[2:4]:
            self.step += 1
            ask = Ask(
                "reserve_task",
                {
                    "topic": self.world.topics[0],
                    "pid": player.actor.pid,
                    "lease": player.actor.seconds(),
                },
                player.actor.leased,
            )
            self._send(player, ask, call_of(ask.function, ask.arguments))

    def _weight(self, entry: Entry) -> float:
        return entry.weight * THEMES[self.theme].get(entry.tag, 0)

    def _act(self) -> None:
        if self.waiters and self.chance.random() < 0.08:
            self._cancel(self.chance.choice(self.waiters))
            return
        idle = [p for p in self.players if p not in self.waiters]
        if not idle or self.chance.random() < 0.12:
            self._move_clock()
            return
        player = self.chance.choices(idle, [SHARES[p.actor.role] for p in idle])[0]
        if player.transaction:
            self._go_on(player, player.transaction)
        elif self.chance.random() < self.opening:
            self._begin(player)
        else:
            self._ask(player)

    # Transactions

    def _begin(self, player: Player) -> None:
        self._transactions += 1
        player.transaction = Transaction(self._transactions, player.actor.name, self.step)
        player.wire.run("begin; select set_config('proof.began', sokka.clock()::text, true)")
        if self.chance.random() < 0.6:
            player.again = self._fence(player.actor) or player.again
        self._ask(player)

    def _fence(self, actor: Actor) -> Ask | None:
        """What a transaction is mostly opened for."""
        if actor.role == "worker" and self.theme == "locks":
            mine = [held for held in self.world.held if held.owner == actor.pid]
            return Ask("assert_lock", vars(mine[-1])) if mine else None
        return Ask("assert_lease", vars(actor.leases[-1])) if actor.leases else None

    def _go_on(self, player: Player, transaction: Transaction) -> None:
        chance = self.chance.random()
        if player.broken or chance < 0.06:
            self._end(player, transaction, commit=False)
        elif chance < 0.28:
            self._end(player, transaction, commit=True)
        elif chance < 0.30:
            self._kill(player, transaction)
        elif (player.fences or player.locks) and chance < 0.60:
            self._write(player)
        else:
            self._ask(player)

    def _end(self, player: Player, transaction: Transaction, commit: bool) -> None:
        if commit:
            text = "select proof.note('end'); commit" if self._noted(player) else "commit"
            answer = player.wire.run(text)
            assert not answer.sqlstate, answer.message
            # An answer may be lost on its way; the checker then has to find out.
            lost = self.chance.random() < 0.04
            transaction.outcome = INFO if lost else OK
        else:
            player.wire.run("rollback")
            transaction.outcome = FAIL
        self._leave(player, transaction)

    def _noted(self, player: Player) -> bool:
        return bool(player.fences or player.locks)

    def _kill(self, player: Player, transaction: Transaction) -> None:
        """The server loses a session; what its client was told is nothing."""
        backend = player.wire.backend
        self.stage.value("select pg_terminate_backend(%s)", backend)
        # Gone from this view, it has given back its locks.
        for _ in range(20_000):
            if not self.stage.value(SESSIONS, backend):
                break
        else:
            raise AssertionError("a session that was ended is still there")
        player.wire.reopen()
        self._leave(player, transaction)

    def _leave(self, player: Player, transaction: Transaction) -> None:
        transaction.ended = self.step
        player.transaction = None
        player.broken = False
        player.fences, player.locks = [], []

    def _write(self, player: Player) -> None:
        """The user's own write, under a fence."""
        if player.locks and (not player.fences or self.chance.random() < 0.5):
            held = self.chance.choice(player.locks)
            note = f"select proof.note('lock', '{held.key}', {held.token})"
            self._send(player, Ask("write", {"key": held.key, "token": held.token}), note)
            return
        lease = self.chance.choice(player.fences)
        note = (
            f"insert into proof.effects values ('{lease.task_id}', {lease.token});"
            f" select proof.note('lease', '{lease.task_id}', {lease.token})"
        )
        self._send(player, Ask("write", {"task_id": lease.task_id, "token": lease.token}), note)

    # Calls

    def _ask(self, player: Player) -> None:
        ask, player.again = player.again, None
        if ask is None:
            entry = self.chance.choices(player.moves, player.weights)[0]
            ask = entry.move(player.actor)
        if ask is not None:
            self._send(player, ask, call_of(ask.function, ask.arguments))

    def _send(self, player: Player, ask: Ask, text: str) -> None:
        call = self._begin_call(player.actor.name, ask, player.transaction)
        player.wire.send(f"set proof.call = {call.number}; {text}")
        player.ask, player.waiting = ask, call
        if self._settled(player):
            self._answered(player)
        else:
            self._wait(player, call)

    def _begin_call(self, actor: str, ask: Ask, transaction: Transaction | None) -> Call:
        call = Call(
            len(self.history.calls) + 1,
            actor,
            ask.function,
            ask.arguments,
            began=self.step,
            clock=self.world.clock,
            transaction=transaction,
        )
        self.history.calls.append(call)
        return call

    def _answered(self, player: Player) -> None:
        call, ask = player.waiting, player.ask
        assert call is not None and ask is not None
        player.waiting = player.ask = None
        answer = player.wire.answer()
        self._enter(call, answer)
        if answer.sqlstate.startswith("SK00"):
            player.actor.lost(str(ask.arguments.get("task_id")))
        if answer.sqlstate and player.transaction:
            player.broken = True
        elif call.outcome == OK and player.transaction is None and self.chance.random() < 0.03:
            # The answer is lost; its client asks again, perhaps.
            call.outcome, call.rows = INFO, []
            player.again = ask if self.chance.random() < 0.7 else None
        elif call.outcome == OK:
            if ask.learn:
                ask.learn(call.rows)
            self._fenced(player, call)

    def _enter(self, call: Call, answer: Answer) -> None:
        call.ended, call.clock_ended = self.step, self.world.clock
        call.rows = answer.rows
        if call.function == "exchange_work":
            call.rows = spelled_out(answer.rows, call.arguments["task_ids"])
        call.sqlstate, call.detail = answer.sqlstate, answer.detail or answer.message
        call.outcome = FAIL if answer.sqlstate else OK

    def _fenced(self, player: Player, call: Call) -> None:
        if player.transaction is None:
            return
        said = call.arguments
        if call.function == "assert_lease":
            player.fences.append(Lease(said["task_id"], said["pid"], said["token"]))
        elif call.function == "assert_lock":
            player.locks.append(Held(said["key"], said["owner"], said["token"]))
        elif call.function in (
            "terminate_task",
            "fail_task",
            "retry_task",
            "snooze_task",
            "release_lease",
            "wait_for_task",
            "renew_lease",
            "revoke_lease",
            "acquire_lease",
            "release_lock",
            "renew_lock",
            "cancel_task",
        ):
            # Its own end, or worse: no further writes under that fence.
            player.fences = [f for f in player.fences if f.task_id != said.get("task_id")]
            player.locks = [f for f in player.locks if f.key != said.get("key")]
        elif call.function in (
            "terminate_tasks",
            "settle_tasks",
            "settle_and_reserve",
            "exchange_leases",
            "exchange_work",
        ):
            player.fences = []

    # Waits

    def _settled(self, player: Player) -> bool:
        """Whether the statement is through; if not, it waits for another player."""
        ours = {p.wire.backend for p in self.players}
        waited = 0.0
        while not player.wire.answered(LOOK_S):
            blockers = set(self._blockers(player))
            if blockers and blockers <= ours:
                return False
            waited += LOOK_S
            assert waited < DEADLINE_S, "neither an answer nor a wait for one of us"
        return True

    def _blockers(self, player: Player) -> list[int]:
        found: list[int] = self.stage.value("select pg_blocking_pids(%s)", player.wire.backend)
        return found

    def _wait(self, player: Player, call: Call) -> None:
        blockers = set(self._blockers(player))
        holders = [p for p in self.players if p.wire.backend in blockers]
        self.waiters.append(player)
        for holder in holders:
            if holder.transaction:
                self.history.waits.append((call.number, holder.transaction.number))
        if ring := self._ring(player):
            self.history.deadlocks.append(ring)
            self._cancel(player)
        elif len(self.waiters) > 1 and not self._behind_a_waiter(player, blockers):
            self._cancel(player)

    def _behind_a_waiter(self, player: Player, blockers: set[int]) -> bool:
        """Whether it waits for the transaction of another waiter, and so for its end.

        Two that wait for one row, or for one transaction, would race when that ends: after
        an update the server keeps no queue.
        """
        others = {p.wire.backend for p in self.waiters if p is not player}
        kind = self.stage.value(
            "select locktype from pg_locks where pid = %s and not granted", player.wire.backend
        )
        return blockers <= others and kind == "transactionid"

    def _ring(self, player: Player) -> tuple[int, ...]:
        """The calls that wait for one another, if this one closes a ring."""
        by_backend = {p.wire.backend: p for p in self.waiters}
        seen: list[Player] = []
        todo = [player]
        while todo:
            one = todo.pop()
            for backend in self._blockers(one):
                other = by_backend.get(backend)
                if other is player:
                    return tuple(p.waiting.number for p in (*seen, one) if p.waiting)
                if other and other not in seen and other is not one:
                    seen.append(other)
                    todo.append(other)
        return ()

    def _cancel(self, player: Player) -> None:
        """Its patience is at an end."""
        self.stage.value("select pg_cancel_backend(%s)", player.wire.backend)
        assert player.wire.answered(DEADLINE_S)
        self.waiters.remove(player)
        self._answered(player)
        self._look_at_waiters()

    def _look_at_waiters(self) -> None:
        changed = True
        while changed:
            changed = False
            for player in list(self.waiters):
                if self._settled(player):
                    self.waiters.remove(player)
                    self._answered(player)
                    changed = True
                    break

    # The clock

    def _move_clock(self) -> None:
        kind = self.chance.random()
        due = self._next_due()
        if kind < 0.3 or due is None:
            to = self.world.clock + self.chance.choice((0.5, 1, 3)) * SECOND
        else:
            # Where rules are kept or broken: just before, at, and just after an instant.
            to = due + self.chance.choice((-1, 0, 0, 1, 500_000))
        self._set_clock(int(to))

    def _set_clock(self, to: int) -> None:
        if to > self.world.clock:
            self.world.clock = to
            self.stage.value("select setval('proof.clock_us', %s)", to)
            self.history.ticks.append(Tick(self.step, to))

    def _next_due(self) -> int | None:
        found: int | None = self.stage.value(NEXT_DUE, self.world.clock)
        return found

    def _look(self, task_id: str) -> int | None:
        version: int | None = self.stage.value(
            "select record_ver from sokka.all_tasks where task_id = %s", task_id
        )
        return version

    # The end

    def _close_all(self) -> None:
        self.step += 1
        for _ in range(2 * len(self.players)):
            for player in self.players:
                if player.transaction and player not in self.waiters:
                    commit = not player.broken and self.chance.random() < 0.7
                    self._end(player, player.transaction, commit)
            self._look_at_waiters()
        assert not self.waiters and not any(p.transaction for p in self.players)

    def _drain(self) -> None:
        """All faults are over: whatever there is must come to an end by itself."""
        wire = self.stage.wires[-1]
        self._drain_call(wire, Ask("resume_topic", {"topic": TOPICS[0]}))
        self._drain_call(wire, Ask("resume_topic", {"topic": TOPICS[1]}))
        for _ in range(DRAIN_ROUNDS):
            self._drain_call(wire, Ask("sweep", {"max_tasks": 1000}))
            got = self._drain_call(
                wire,
                Ask(
                    "reserve_tasks",
                    {
                        "topics": list(TOPICS),
                        "pid": "drain",
                        "max_tasks": 100,
                        "lease": "10 seconds",
                    },
                ),
            )
            if got:
                self._drain_call(
                    wire,
                    Ask(
                        "terminate_tasks",
                        {
                            "pid": "drain",
                            "task_ids": [row["task_id"] for row in got],
                            "tokens": [row["token"] for row in got],
                        },
                    ),
                )
                continue
            self.history.unfinished = self.stage.value(UNFINISHED)
            if not self.history.unfinished:
                return
            due = self._next_due()
            self.step += 1
            self._set_clock(max(self.world.clock + SECOND, due or 0))

    def _drain_call(self, wire: Wire, ask: Ask) -> list[dict[str, Any]]:
        self.step += 1
        call = self._begin_call("drain", ask, None)
        answer = wire.run(
            f"set proof.call = {call.number}; " + call_of(ask.function, ask.arguments)
        )
        self._enter(call, answer)
        return call.rows


SESSIONS = "select count(*) from pg_stat_activity where pid = %s"

NEXT_DUE = """
    select min(d) from (
        select proof.us(lease_expires_at) as d from sokka.tasks where status = 'running'
        union all
        select proof.us(run_at) from sokka.tasks
         where status = 'snoozed' and run_at < sokka.until_told()
        union all
        select proof.us(expires_at) from sokka.tasks where status <> 'running'
        union all
        select proof.us(deadline_at) from sokka.joins where state = 'open'
        union all
        select proof.us(lock_expires_at) from sokka.locks
        union all
        select proof.us(look_at) from sokka.schedules where paused_at is null) x
     where d > %s"""

UNFINISHED = """
    select coalesce(array_agg(w), '{}') from (
        select 'task ' || task_id || ' ' || status as w from sokka.tasks
        union all
        select 'join ' || task_id || ' ' || state from sokka.joins where state <> 'closed'
        union all
        select 'inbox of ' || join_id from sokka.join_inbox) x"""


@dataclass(frozen=True)
class Finding:
    """An interleaving that broke a rule."""

    seed: int
    theme: str
    history: History
    faults: list[Fault]

    def __str__(self) -> str:
        lines = [
            f"SEED={self.seed} THEME={self.theme}",
            *(f"  {fault}" for fault in self.faults[:8]),
            "  the shortest history of one of them (acts, who, what; | the rows it changed):",
            *(f"    {line}" for line in shortest(self.history, self.faults)),
        ]
        return "\n".join(lines)


def search(stage: Stage, seeds: Iterable[int], theme: str | None = None) -> Finding | None:
    """The first of these seeds whose interleaving breaks a rule."""
    for seed in seeds:
        history = Simulation(stage, seed, theme).run()
        if faults := check(history):
            return Finding(seed, theme or theme_of(seed), history, faults)
    return None


def catch(
    stage: Stage, mutant: Mutant, seeds: Iterable[int], theme: str | None = None
) -> Finding | None:
    """The first of these seeds that shows a defect, and shows nothing without it."""
    theme = theme or mutant.theme
    for seed in seeds:
        with witness.defect(stage.observer, mutant.change):
            found = search(stage, [seed], theme)
        if found and search(stage, [seed], theme) is None:
            return found
    return None


def fingerprint(history: History) -> list[object]:
    """What two plays of one seed have in common: all but the names that the server gives,
    and the order in which one statement writes its rows."""
    return [
        *(
            (c.function, c.actor, c.began, c.settled, c.outcome, c.sqlstate, len(c.rows))
            for c in history.calls
        ),
        *sorted(
            (
                (c.call, c.source, c.clock, c.row.get("status"), c.row.get("ver"),
                 c.row.get("until"))
                for c in history.changes
            ),
            key=repr,
        ),
    ]
