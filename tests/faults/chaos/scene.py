"""The ground of an act: servers, a database with the schema and the witness over it, a
second database for effects, roles, and a look at who is connected all the while."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from sokka_pg import embedded, migrate, schema
from sokka_pg.embedded import Binaries, Server
from tests.faults.chaos import effects, pair
from tests.faults.chaos.crew import Crew
from tests.faults.chaos.faults import PLAIN, Fault, Role, Way
from tests.faults.chaos.handlers import CREATE_TABLE, TABLE
from tests.faults.chaos.judging import witness
from tests.faults.chaos.operators import Operators
from tests.faults.chaos.plan import ActPlan
from tests.faults.chaos.producers import Load
from tests.faults.chaos.watching import Watch
from tests.faults.chaos.words import Injection, to_json

DATABASE = "shop"
MUTANT = "CHAOS_MUTANT"
# fsync stays on: what a crash loses is what is looked for.
SETTINGS = {"max_connections": "150", "timezone": "UTC", "shared_buffers": "64MB"}
EFFECTS_SETTINGS = {"fsync": "off", "max_connections": "300", "shared_buffers": "32MB"}
# The connections that B's faults leave to the harness are those of the superuser.
FOLDERS = ("history", "effects", "logs")


class Scene:
    """See ``tests.faults.chaos.faults.Scene``. Made by ``open``; ``close`` takes all down."""

    def __init__(
        self, plan: ActPlan, folder: Path, binaries: Binaries, mutant: str = ""
    ) -> None:
        self.plan, self.folder, self.binaries = plan, folder, binaries
        self.name, self.lease_s, self.database = plan.name, plan.lease_s, DATABASE
        self.turn = asyncio.Lock()
        self.mutant = mutant
        self.newest = plan.servers != "old"
        """Whether the schema is that of this checkout."""
        self._roles: list[str] = []
        self.disk: Any = None
        self.release: Any = None
        self.servers: Sequence[Server] = ()
        self.injections: list[Injection] = []
        self._stack = ExitStack()
        self.crew = Crew(folder, plan.lease_s, "")
        self.load: Any = None
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)

    # --- what faults see --------------------------------------------------------

    def url(self, role: str | None = None) -> str:
        """By the socket; of two servers, to the one that takes writes."""
        urls = [server.url(DATABASE) for server in self.servers]
        found = urls[0] if len(urls) == 1 else pair.either(urls, DATABASE)
        if role is None:
            return make_conninfo(found, application_name="chaos", connect_timeout=5)
        return make_conninfo(found, user=role)

    def log(self, injection: Injection) -> None:
        self.injections.append(injection)
        with (self.folder / "injections.jsonl").open("a") as file:
            file.write(json.dumps(to_json(injection), default=str) + "\n")

    # --- up and down ------------------------------------------------------------

    def raise_servers(self) -> None:
        """Blocks: to be called in a thread."""
        kind = self.plan.servers
        enter = self._stack.enter_context
        self.effects_server = enter(
            Server.temporary(binaries=self.binaries, settings=EFFECTS_SETTINGS)
        )
        if kind in ("sync", "async"):
            self.servers = enter(pair.pair(self.binaries, SETTINGS))
        elif kind == "small":
            self.servers = (self._on_small_disk(),)
        else:
            self.servers = (
                enter(Server.temporary(
                    binaries=self.binaries, settings=SETTINGS, listen=pair.LISTEN
                )),
            )
        self.primary = self.servers[0]
        self._fill()
        if kind == "sync":
            pair.make_synchronous(*self.servers)
        _create(self.effects_server, "effects")
        self.effects_url = self.effects_server.url("effects")
        effects.prepare(self.effects_url)
        self._defect(self.effects_url, "effects")

    def _on_small_disk(self) -> Server:
        from tests.faults.chaos.faults.disk import SmallDisk

        self.disk = SmallDisk()
        self._stack.callback(self.disk.remove)
        return self._stack.enter_context(
            Server.start(
                self.disk.data, binaries=self.binaries,
                settings={**SETTINGS, **SmallDisk.SETTINGS}, listen=pair.LISTEN,
            )
        )

    def _fill(self) -> None:
        _create(self.primary, DATABASE)
        url = self.primary.url(DATABASE)
        if self.plan.servers == "old":
            from tests.faults.chaos.faults import versions

            self.release = versions.previous_release(schema.migrations_root().parent)
            self.release.extract(self.folder / "release")
            self.release.migrate(url)
        else:
            migrate.upgrade(url)
        with closing(psycopg.connect(url, autocommit=True, application_name="chaos")) as asking:
            asking.execute(CREATE_TABLE)
            asking.execute("select sokka.guard_table(%s)", (TABLE,))
            self._defect(url, DATABASE)
            witness.install(asking)
            witness.guard(asking, TABLE)

    def _defect(self, url: str, where: str) -> None:
        """Put in what the run is to find, if it is to find something."""
        if self.mutant:
            from tests.faults.chaos import mutants

            with closing(psycopg.connect(url, autocommit=True)) as asking:
                mutants.apply_sql(asking, self.mutant, where)

    def migrated(self) -> None:
        """The witness and the rights of roles, for what came with the migration."""
        with closing(psycopg.connect(self.url(), autocommit=True)) as asking:
            witness.install(asking)
            for role in self._roles:
                grant(asking, role)
        self.newest = True

    def make_roles(self, roles: Sequence[Role]) -> None:
        """Ordinary ones, with the rights of a worker and of a producer."""
        with closing(psycopg.connect(self.url(), autocommit=True)) as asking:
            for role in {each.name: each for each in (Role(PLAIN), *roles)}.values():
                self._roles.append(role.name)
                asking.execute(f"create role {role.name} login")
                for setting, value in role.settings.items():
                    asking.execute(f"alter role {role.name} set {setting} = '{value}'")
                grant(asking, role.name)

    def hire(self) -> None:
        """The crew, the producers and the operators; nobody works yet."""
        surroundings = {MUTANT: self.mutant} if self.mutant else {}
        self.crew = Crew(self.folder, self.lease_s, self.effects_url, surroundings)
        if self.release is not None:
            # what both revisions know: those of the old one
            surroundings = {**surroundings, **self.release.environment()}
        self.load = Load(self, self.plan.dice("load").randrange(2**31), surroundings)
        self.operators = Operators(self)
        self.watch = Watch(self)

    async def seat(self, faults: dict[str, Fault]) -> None:
        """Give each worker its way to the server."""
        makers = {variant: fault for fault in faults.values() for variant in fault.variants}
        for seat in self.plan.seats:
            maker = makers.get(seat.variant)
            way = (
                Way("direct", self.url) if maker is None
                else await maker.way(self, seat.variant, seat.name)
            )
            self.crew.add(seat, way)

    def close(self) -> None:
        """Everything, whatever state it is in."""
        self.crew.kill()
        if self.load is not None:
            self.load.kill()
        self._stack.close()


def grant(connection: psycopg.Connection[Any], role: str) -> None:
    """The rights of a worker; to be said again after a migration."""
    for what in (
        "usage on schema sokka", "execute on all functions in schema sokka",
        f"select, insert on {TABLE}",
    ):
        connection.execute(f"grant {what} to {role}")


def _create(server: Server, database: str) -> None:
    with closing(psycopg.connect(server.url(), autocommit=True, application_name="chaos")) as made:
        made.execute(f"create database {database} template template0")


def binaries_of(major: int | None) -> Binaries:
    """The newest, or those of a major. Raises ValueError: what there is."""
    known = embedded.all_binaries()
    found = [each for each in known if major in (None, each.version)]
    if not found:
        there = ", ".join(str(each.version) for each in known) or "none"
        raise ValueError(f"PG: there is no PostgreSQL {major} here (found: {there})")
    return max(found, key=lambda each: each.version)


async def offset_us(url: str) -> int:
    """The server's clock minus this process's monotonic one, in microseconds; from the
    quickest of some questions."""
    best: tuple[int, int] | None = None
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as asking:
        for _ in range(20):
            before = time.monotonic_ns()
            cursor = await asking.execute(
                "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
            )
            row = await cursor.fetchone()
            after = time.monotonic_ns()
            assert row is not None
            seen = (after - before, int(row[0]) - (before + after) // 2000)
            best = min(best, seen) if best else seen
    assert best is not None
    return best[1]
