"""The faults of a run, by name, and what they need of the ground that they are done to.

A fault lives through an act like this: ``possible`` is asked before the act is planned;
``way`` is asked once for each worker that is to run in one of the fault's ``variants``,
before the worker starts; ``run`` fires until its time is over and leaves everything
healed, also when it is cancelled; ``bites`` counts, after the drain, what it did;
``close`` takes down what ``way`` put up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sokka_pg.embedded import Server

if TYPE_CHECKING:
    from tests.faults.chaos.faults.disk import SmallDisk
    from tests.faults.chaos.words import Act, Bite, Injection

PLAIN = "chaos_plain"
"""The role of a worker whose settings no fault touches."""


@dataclass(frozen=True)
class Role:
    """An ordinary role that must exist, with the rights of a worker, before the crew starts.

    No worker comes as a superuser: that one passes every limit of connections.
    """

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Set by ALTER ROLE when the role is made, so that a worker's first session has them."""


@dataclass(frozen=True)
class Way:
    """How one worker is run, and by which way it comes to the server."""

    variant: str
    url: Callable[[str], str]
    """The URL of the product's database for a role."""
    prefix: tuple[str, ...] = ()
    """What stands before the worker's command; it must ``exec``, so that the pid stays."""
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """For ``sokka worker``, such as ``--pooler``."""
    roles: tuple[str, ...] = ()
    """The roles that may come this way; any, if none is named."""


class CrewMember(Protocol):
    """A worker process of the act."""

    variant: str

    @property
    def name(self) -> str:
        """Its ``--pid``, the owner of its leases: another one after each start."""

    @property
    def os_pid(self) -> int | None:
        """None while it is down."""

    @property
    def starts(self) -> int:
        """How often it was started."""

    def kill(self, *, group: bool = True) -> None:
        """SIGKILL to its process group, or to the worker alone, and wait for its end."""

    def pause(self) -> None:
        """SIGSTOP, to its process group."""

    def resume(self) -> None:
        """SIGCONT, likewise; nothing to a process that is gone."""

    def restart(self) -> None:
        """Start it again by its way, if it is down."""


class Crew(Protocol):
    @property
    def workers(self) -> Sequence[CrewMember]: ...


class Load(Protocol):
    """The producers, as far as F19 is concerned."""

    poison_share: float
    """The share of enqueued tasks whose data are hostile; 0 without F19."""

    @property
    def poisoned(self) -> int:
        """How many hostile ones were tried so far."""

    @property
    def refused(self) -> int:
        """How many of them the product refused, by name, at once."""


class Operators(Protocol):
    """The people at the commands, as far as F20 is concerned."""

    async def act(self, dice: random.Random) -> str:
        """One operation on something random, recorded as a call; the operation's name."""

    @property
    def accepted(self) -> Mapping[str, int]:
        """How often which operation was answered with ok and changed something."""


class Scene(Protocol):
    """The ground of an act."""

    name: str
    folder: Path
    lease_s: float
    database: str
    """The name of the database with the product's schema."""
    turn: asyncio.Lock
    """Held by the fault that has the server down, frozen or full: one such at a time."""

    @property
    def servers(self) -> Sequence[Server]: ...

    @property
    def crew(self) -> Crew: ...

    @property
    def load(self) -> Load: ...

    @property
    def operators(self) -> Operators: ...

    @property
    def disk(self) -> SmallDisk | None:
        """The small file system on which the server stands, in the act ``disk``."""

    @property
    def primary(self) -> Server:
        """The server that takes writes, as far as is known."""

    def url(self, role: str | None = None) -> str:
        """Straight to the primary's product database, by its socket; None: the superuser.

        It says ``application_name=chaos`` for the superuser and nothing for a role.
        """

    def log(self, injection: Injection) -> None:
        """Note it in the act's injections."""


class Fault(Protocol):
    """One row of the table of faults."""

    name: str
    roles: tuple[Role, ...]
    """Roles of which at least one worker must come, for this fault to reach it."""
    variants: tuple[str, ...]
    """The variants of workers that this fault puts up; at least one worker in each of
    some of them, or it reaches nobody."""

    def possible(self, scene: Scene | None) -> str | None:
        """Why it cannot run, or None; without a scene: on this machine at all."""

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        """Put up what this worker needs."""

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        """Fire until then (``time.monotonic()``), and heal."""

    def bites(self, act: Act) -> Bite:
        """What it did, counted; 0 = nothing."""

    async def close(self) -> None:
        """Take down what it put up. The crew has ended."""


FAULTS: Mapping[str, str] = {
    "F1": "processes:Killed",
    "F2": "processes:Paused",
    "F3": "backends:Ended",
    "F4": "server:Crashed",
    "F5": "server:Frozen",
    "F6": "network:Cut",
    "F7": "network:Partitioned",
    "F8": "clocks:WrongClocks",
    "F9": "failover:Failover",
    "F10": "disk:Full",
    "F11": "backends:Crowded",
    "F12": "backends:ShortTime",
    "F13": "locks:Locked",
    "F14": "locks:OldSnapshot",
    "F15": "pooler:Pooled",
    "F16": "versions:MixedVersions",
    "F17": "settings:HostilePlans",
    "F18": "settings:Isolated",
    "F19": "people:Poison",
    "F20": "people:Operated",
}
"""Where each fault stands, below this package. Imported when it is asked for."""


def fault(name: str) -> Fault:
    """A new fault of that name, for one act."""
    module, _, kind = FAULTS[name].partition(":")
    made: Fault = getattr(import_module(f"{__name__}.{module}"), kind)()
    return made
