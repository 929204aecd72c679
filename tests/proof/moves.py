"""What the actors may do next. A move looks at what its actor knows, draws from the seeded
chance, and asks for one call; or for none, when it has nothing to do it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from .wire import Json

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
TOPICS = ("a", "b")
LEASES = (4, 10, 20)
POLICIES = ("settled", "all", "any", "first_success", "quorum")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Lease:
    task_id: str
    pid: str
    token: int


@dataclass(frozen=True)
class Held:
    key: str
    owner: str
    token: int


@dataclass
class Ask:
    """One call, and what its actor makes of the answer."""

    function: str
    arguments: dict[str, Any]
    learn: Callable[[Rows], None] | None = None


@dataclass
class World:
    """What all actors know of: they gossip, so that ghosts have old leases to try."""

    chance: Random
    tasks: list[str] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    joins: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    due: Rows = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)
    topics: tuple[str, ...] = TOPICS
    schedules: int = 0
    clock: int = 0
    look: Callable[[str], int | None] = lambda task_id: None

    def new_id(self) -> str:
        """Above all ids that the server makes up from the time of day, in every year."""
        return str(UUID(int=self.chance.getrandbits(128) | 1 << 127, version=4))

    def some_task(self) -> str | None:
        """One of the latest, mostly: few rows, so that the actors meet."""
        if self.leases and self.chance.random() < 0.5:
            return self.chance.choice(self.leases[-3:]).task_id
        few = self.tasks[-4:] if self.chance.random() < 0.8 else self.tasks
        return self.chance.choice(few) if few else None


@dataclass
class Actor:
    name: str
    role: str
    world: World
    pid: str = ""
    leases: list[Lease] = field(default_factory=list)
    fenced: list[Lease] = field(default_factory=list)
    locked: list[Held] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pid = self.name

    @property
    def chance(self) -> Random:
        return self.world.chance

    def seconds(self, *choices: int) -> str:
        return f"{self.chance.choice(choices or LEASES)} seconds"

    def lease(self) -> Lease | None:
        """Mostly its newest; now and then whatever it or another once had."""
        if self.leases and self.chance.random() < 0.8:
            return self.leases[-1 if self.chance.random() < 0.7 else 0]
        return self.chance.choice(self.world.leases[-6:]) if self.world.leases else None

    def proof(self, lease: Lease) -> dict[str, Any]:
        pid = lease.pid if self.chance.random() < 0.95 else self.pid
        return {"task_id": lease.task_id, "pid": pid, "token": lease.token}

    def leased(self, rows: Rows) -> None:
        for row in rows:
            given = row.get("lease") or row
            if given.get("token") is not None and given.get("pid"):
                lease = Lease(given["task_id"], given["pid"], given["token"])
                self.leases.append(lease)
                self.world.leases.append(lease)

    def forget(self, lease: Lease) -> None:
        self.leases = [one for one in self.leases if one != lease]

    def lost(self, task_id: str) -> None:
        """It was told that this lease is no more. Now and then it does not listen."""
        if self.chance.random() < 0.7:
            self.leases = [one for one in self.leases if one.task_id != task_id]


Move = Callable[[Actor], Ask | None]


@dataclass(frozen=True)
class Entry:
    name: str
    role: str
    tag: str
    weight: float
    move: Move


CATALOGUE: list[Entry] = []


def move(role: str, tag: str, weight: float = 1.0) -> Callable[[Move], Move]:
    def enter(made: Move) -> Move:
        CATALOGUE.append(Entry(made.__name__, role, tag, weight, made))
        return made

    return enter


# Producers


@move("producer", "queue", 4)
def create_task(actor: Actor) -> Ask:
    chance, world = actor.chance, actor.world
    arguments: dict[str, Any] = {
        "topic": chance.choice(actor.world.topics),
        "task_id": world.new_id(),
        "data": Json({"n": chance.randrange(1000)}),
        "priority": chance.choice((0, 5)),
        "retry": Json({"max_attempts": chance.choice((1, 2, 3)), "initial": 3}),
        "max_losses": chance.choice((0, 1, 5)),
    }
    if chance.random() < 0.25:
        arguments["unique_key"] = chance.choice("kl")
    if chance.random() < 0.2:
        arguments["run_at"] = at(actor, chance.choice((3, 8)))
    if chance.random() < 0.2:
        arguments["expires_at"] = at(actor, chance.choice((5, 9)))
    return Ask("create_task", arguments, lambda rows: _created(world, rows))


@move("producer", "batch")
def create_tasks(actor: Actor) -> Ask:
    world = actor.world
    specs: list[dict[str, Any]] = [
        {
            "topic": actor.chance.choice(actor.world.topics),
            "task_id": world.new_id(),
            "data": {"n": actor.chance.randrange(1000)},
            "max_losses": actor.chance.choice((0, 5)),
        }
        for _ in range(actor.chance.choice((2, 3)))
    ]
    if actor.chance.random() < 0.3:
        specs[0]["unique_key"] = actor.chance.choice("kl")
    return Ask("create_tasks", {"specs": Json(specs)}, lambda rows: _created(world, rows))


def at(actor: Actor, seconds: int) -> str:
    instant = BEGIN + timedelta(seconds=seconds, microseconds=actor.world.clock)
    return instant.isoformat()


def _created(world: World, rows: Rows) -> None:
    world.tasks.extend(row["task_id"] for row in rows if row["task_id"] not in world.tasks)


@move("producer", "cancel")
@move("operator", "cancel", 2)
def cancel_task(actor: Actor) -> Ask | None:
    task = actor.world.some_task()
    return Ask("cancel_task", {"task_id": task}) if task else None


@move("operator", "operator", 0.7)
def resubmit_task(actor: Actor) -> Ask | None:
    task = actor.world.some_task()
    if task is None:
        return None
    return Ask("resubmit_task", {"task_id": task}, lambda rows: _created(actor.world, rows))


@move("producer", "join", 2)
def fan_out(actor: Actor) -> Ask:
    return _fan_out(actor, {})


def _fan_out(actor: Actor, parent: dict[str, Any]) -> Ask:
    chance, world = actor.chance, actor.world
    total = chance.choice((0, 1, 2, 2, 3))
    policy = chance.choice(POLICIES)
    join = world.new_id()
    children = [world.new_id() for _ in range(total)]
    arguments = parent | {
        "specs": Json(
            [
                {
                    "topic": chance.choice(actor.world.topics),
                    "task_id": child,
                    "data": {"n": n},
                    "max_losses": chance.choice((0, 5)),
                }
                for n, child in enumerate(children)
            ]
        ),
        "policy": policy,
        "needed": chance.randint(0, total) if policy == "quorum" else None,
        "max_running": chance.choice((None, None, 1, 2)),
        "deadline": chance.choice((None, None, "6 seconds")),
        "task_id": join,
        "topic": chance.choice(actor.world.topics),
        "kind": chance.choice((None, None, "reduce")),
    }

    def learn(rows: Rows) -> None:
        if rows and rows[0]["created"]:
            world.tasks.extend([join, *children])
            world.joins.setdefault(str(parent.get("parent_task_id", "")), []).append(join)

    return Ask("fan_out", arguments, learn)


@move("producer", "schedule", 2)
def put_schedule(actor: Actor) -> Ask:
    world = actor.world
    world.schedules += 1
    # No two generations have a tick in common, so that one is known by its instant.
    spec: dict[str, Any] = {
        "schedule": "@every 3s",
        "next_at": f"2030-01-01T00:00:0{actor.chance.choice((0, 2))}.{world.schedules:06d}Z",
        "task": {"topic": actor.chance.choice(actor.world.topics), "data": {"by": "schedule"}},
        "missed": "all",
        "description": str(world.schedules),
    }
    if actor.chance.random() < 0.2:
        spec["repeats"] = 2
    return Ask("put_schedule", {"name": actor.chance.choice("st"), "spec": Json(spec)})


# Workers


@move("worker", "queue", 6)
def reserve_task(actor: Actor) -> Ask:
    topic = actor.chance.choice(actor.world.topics)
    asked = {"topic": topic, "pid": actor.pid, "lease": actor.seconds()}
    return Ask("reserve_task", asked, actor.leased)


@move("worker", "batch", 3)
def reserve_tasks(actor: Actor) -> Ask:
    return Ask("reserve_tasks", _reserve(actor), actor.leased)


def _reserve(actor: Actor) -> dict[str, Any]:
    return {
        "topics": list(TOPICS),
        "pid": actor.pid,
        "max_tasks": actor.chance.choice((1, 2, 3)),
        "lease": actor.seconds(),
    }


@move("worker", "queue", 2)
def acquire_lease(actor: Actor) -> Ask | None:
    task = actor.world.some_task()
    if task is None:
        return None
    asked = {"task_id": task, "pid": actor.pid, "lease": actor.seconds()}
    return Ask("acquire_lease", asked, actor.leased)


def on_lease(function: str, tag: str, weight: float, ends: bool = False) -> Callable[[Any], Any]:
    """A verb on a lease; the decorated function gives its further arguments."""

    def enter(further: Callable[[Actor], dict[str, Any] | None]) -> Callable[[Actor], Any]:
        def made(actor: Actor) -> Ask | None:
            if not actor.leases and actor.chance.random() < 0.6:
                return reserve_task(actor)
            lease = actor.lease()
            more = further(actor) if lease else None
            if lease is None or more is None:
                return None

            def learn(rows: Rows) -> None:
                if ends:
                    actor.forget(lease)
                elif function == "append_stream":
                    actor.world.streams.setdefault(lease.task_id, 0)

            return Ask(function, actor.proof(lease) | more, learn)

        made.__name__ = function
        move("worker", tag, weight)(made)
        return further

    return enter


@on_lease("extend_lease", "queue", 3)
def _extend(actor: Actor) -> dict[str, Any]:
    return {"lease": actor.seconds(10, 20, 30)}


@on_lease("renew_lease", "queue", 2)
def _renew(actor: Actor) -> dict[str, Any]:
    return {"lease": actor.seconds()}


@on_lease("release_lease", "queue", 2, ends=True)
def _release(actor: Actor) -> dict[str, Any]:
    return {}


@on_lease("terminate_task", "queue", 4, ends=True)
def _terminate(actor: Actor) -> dict[str, Any]:
    return {"result": Json(actor.chance.randrange(1000))}


@on_lease("fail_task", "queue", 1, ends=True)
def _fail(actor: Actor) -> dict[str, Any]:
    return {"error": Json({"code": "error", "message": "no"})}


@on_lease("retry_task", "queue", 3, ends=True)
def _retry(actor: Actor) -> dict[str, Any]:
    return {"error": Json({"code": "error"}), "delay": actor.chance.choice((None, "0", "5"))}


@on_lease("snooze_task", "queue", 2, ends=True)
def _snooze(actor: Actor) -> dict[str, Any]:
    return {"snooze": actor.seconds(0, 5)}


@on_lease("report_progress", "queue", 1)
def _progress(actor: Actor) -> dict[str, Any]:
    return {"progress": Json(actor.chance.randrange(100))}


@on_lease("save_checkpoint", "queue", 2)
def _checkpoint(actor: Actor) -> dict[str, Any]:
    return {"checkpoint": Json(actor.chance.randrange(1000))}


@on_lease("record_step", "stream", 2)
def _step(actor: Actor) -> dict[str, Any]:
    return {"name": actor.chance.choice("xy"), "value": Json(actor.chance.randrange(1000))}


@on_lease("append_stream", "stream", 4)
def _append(actor: Actor) -> dict[str, Any]:
    world = actor.world
    items = [world.chance.randrange(1000) for _ in range(world.chance.choice((1, 2)))]
    after = world.chance.choice((None, None, 0, 1, 2))
    return {"items": Json(items), "after": after}


@on_lease("assert_lease", "fence", 1)
def _assert(actor: Actor) -> dict[str, Any]:
    return {}


@move("worker", "join", 4)
def fan_out_below(actor: Actor) -> Ask | None:
    lease = actor.lease()
    if lease is None:
        return None
    proof = actor.proof(lease)
    parent = {"parent_task_id": proof.pop("task_id")} | proof
    return _fan_out(actor, parent)


@move("worker", "join", 3)
def wait_for_task(actor: Actor) -> Ask | None:
    lease = actor.lease()
    below = actor.world.joins.get(lease.task_id) if lease else None
    if lease is None or not below:
        return None
    asked = actor.proof(lease) | {"waits_for": actor.chance.choice(below)}
    return Ask("wait_for_task", asked, lambda rows: actor.forget(lease))


def _members(actor: Actor) -> list[Lease]:
    """Its leases, one of them perhaps twice, and a ghost's."""
    found = actor.leases[-3:]
    if actor.world.leases and actor.chance.random() < 0.6:
        found = [*found, actor.chance.choice(actor.world.leases)]
    return found


def _batch(actor: Actor, members: list[Lease]) -> dict[str, Any]:
    return {
        "pid": members[0].pid if members else actor.pid,
        "task_ids": [one.task_id for one in members],
        "tokens": [one.token for one in members],
    }


@move("worker", "batch", 2)
def extend_leases(actor: Actor) -> Ask | None:
    members = _members(actor)
    if not members:
        return None
    return Ask("extend_leases", _batch(actor, members) | {"lease": actor.seconds()})


@move("worker", "batch", 2)
def terminate_tasks(actor: Actor) -> Ask | None:
    members = _members(actor)
    return Ask("terminate_tasks", _batch(actor, members)) if members else None


def _verbs(actor: Actor, members: list[Lease]) -> dict[str, Any]:
    verbs = [
        actor.chance.choice(("terminate", "fail", "retry", "snooze", "release")) for _ in members
    ]
    given = {
        "terminate": Json(1),
        "fail": Json({"code": "error"}),
        "retry": Json({"error": {"code": "error"}, "delay": 5}),
        "snooze": Json(5),
        "release": Json(None),
    }
    return _batch(actor, members) | {"verbs": verbs, "args": [given[verb] for verb in verbs]}


@move("worker", "batch", 2)
def settle_tasks(actor: Actor) -> Ask | None:
    members = _members(actor)
    return Ask("settle_tasks", _verbs(actor, members)) if members else None


@move("worker", "batch", 3)
def settle_and_reserve(actor: Actor) -> Ask:
    return Ask("settle_and_reserve", _verbs(actor, _members(actor)) | _reserve(actor), actor.leased)


@move("worker", "batch", 3)
def exchange_leases(actor: Actor) -> Ask:
    return Ask("exchange_leases", _verbs(actor, _members(actor)) | _reserve(actor), actor.leased)


@move("worker", "batch", 3)
def exchange_work(actor: Actor) -> Ask:
    return Ask("exchange_work", _verbs(actor, _members(actor)) | _reserve(actor), actor.leased)


@move("worker", "schedule", 4)
def due_schedules(actor: Actor) -> Ask:
    def learn(rows: Rows) -> None:
        actor.world.due = (actor.world.due + rows)[-6:]

    return Ask("due_schedules", {}, learn)


@move("worker", "schedule", 6)
def fire_schedules(actor: Actor) -> Ask | None:
    """Of what anybody was told to be due, and perhaps fired already: it must not count."""
    if not actor.world.due:
        return None
    due = (
        actor.world.due[-1] if actor.chance.random() < 0.6 else actor.chance.choice(actor.world.due)
    )
    fire = {
        "schedule_id": due["schedule_id"],
        "generation": due["generation"],
        "due_at": due["due_at"],
        "ticks": [due["due_at"]],
        "next_at": _three_seconds_on(due["due_at"]),
    }
    return Ask("fire_schedules", {"fires": Json([fire])})


def _three_seconds_on(instant: str) -> str:
    head, _, rest = instant.partition("T")
    hours, minutes, seconds = rest[:2], rest[3:5], int(rest[6:8]) + 3
    minutes_on = int(minutes) + seconds // 60
    return f"{head}T{hours}:{minutes_on:02d}:{seconds % 60:02d}{rest[8:]}"


@move("worker", "lock", 6)
def try_lock(actor: Actor) -> Ask:
    key = actor.chance.choice("xxy")

    def learn(rows: Rows) -> None:
        for row in rows:
            actor.world.held.append(Held(key, actor.pid, row["token"]))

    return Ask("try_lock", {"key": key, "owner": actor.pid, "ttl": actor.seconds()}, learn)


def on_lock(function: str, weight: float, ttl: bool = False) -> None:
    def made(actor: Actor) -> Ask | None:
        if not actor.world.held:
            return None
        mine = [one for one in actor.world.held if one.owner == actor.pid]
        chance = actor.chance
        held = mine[-1] if mine and chance.random() < 0.7 else chance.choice(actor.world.held)
        asked: dict[str, Any] = {"key": held.key, "owner": held.owner, "token": held.token}
        return Ask(function, asked | ({"ttl": actor.seconds()} if ttl else {}))

    made.__name__ = function
    move("worker", "lock", weight)(made)


on_lock("renew_lock", 2, ttl=True)
on_lock("release_lock", 2)
on_lock("assert_lock", 2)


# Operators


@move("operator", "operator", 4)
def revoke_lease(actor: Actor) -> Ask | None:
    """By the version last read, which may be long ago."""
    world, task = actor.world, actor.world.some_task()
    if task is None:
        return None
    if task not in world.versions or actor.chance.random() < 0.4:
        version = world.look(task)
        if version is None:
            return None
        world.versions[task] = version
    return Ask("revoke_lease", {"task_id": task, "record_ver": world.versions[task]})


@move("operator", "operator", 1)
def look(actor: Actor) -> None:
    """Reads a version, to revoke by it later."""
    task = actor.world.some_task()
    version = actor.world.look(task) if task else None
    if task and version is not None:
        actor.world.versions[task] = version


@move("operator", "queue", 4)
def sweep(actor: Actor) -> Ask:
    return Ask("sweep", {"max_tasks": 100})


@move("operator", "operator", 0.4)
def pause_topic(actor: Actor) -> Ask:
    return Ask("pause_topic", {"topic": actor.chance.choice(actor.world.topics)})


@move("operator", "operator", 0.8)
def resume_topic(actor: Actor) -> Ask:
    return Ask("resume_topic", {"topic": actor.chance.choice(actor.world.topics)})


@move("operator", "operator", 0.1)
def raise_token_epoch(actor: Actor) -> Ask:
    return Ask("raise_token_epoch", {"reason": "a restore"})


@move("operator", "stream", 3)
def read_stream(actor: Actor) -> Ask | None:
    if not actor.world.streams:
        return None
    task = actor.chance.choice(list(actor.world.streams))
    after = actor.world.streams[task]

    def learn(rows: Rows) -> None:
        if rows:
            actor.world.streams[task] = rows[-1]["seq"]

    return Ask("read_stream", {"task_id": task, "after": after, "max_items": 2}, learn)


@move("operator", "schedule", 1)
def pause_schedule(actor: Actor) -> Ask:
    return Ask("pause_schedule", {"name": actor.chance.choice("st")})


@move("operator", "schedule", 2)
def resume_schedule(actor: Actor) -> Ask:
    return Ask("resume_schedule", {"name": actor.chance.choice("st")})
