"""Seeded defects for the run of real processes: each must be found, or the run proves nothing.

Three kinds: of the SQL (text replaced in one file of sql/, which must be there), of a
setting of the database, and of the client, where a worker or producer process changes a
method of the product before it uses it. The product itself knows nothing of them. Each
names the act and the faults that show it soonest; what can only be seen one statement at a
time is among the mutants of the simulator (tests/proof/mutants.py).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from sokka_pg import schema
from tests.proof import mutants as sql

SHOP, EFFECTS = "shop", "effects"


@dataclass(frozen=True)
class Mutant:
    """``where``: which database the SQL is for. ``rules``: those that are to find it."""

    about: str
    act: str
    faults: tuple[str, ...]
    rules: tuple[str, ...]
    seconds: float = 12.0
    workers: int = 4
    seed: int = 1
    sql: tuple[sql.Mutant, ...] = ()
    setting: str = ""
    where: str = SHOP
    client: Callable[[], None] | None = None


def apply_sql(connection: psycopg.Connection[Any], name: str, where: str = SHOP) -> None:
    """Put the defect's SQL and setting into the database of ``connection``, if it is for it."""
    mutant = MUTANTS.get(name)
    if mutant is None or mutant.where != where:
        return
    for change in mutant.sql:
        text = (schema.sql_root() / change.file).read_text("utf-8")
        connection.execute(schema.replacing(change.change(change.file, text)).encode())
    if mutant.setting:
        (database,) = connection.execute("select current_database()").fetchone() or ("",)
        connection.execute(f"alter database {database} set {mutant.setting}")


def apply(name: str) -> None:
    """Put the defect into this process, if it is one of the client."""
    mutant = MUTANTS.get(name)
    if mutant is not None and mutant.client is not None:
        mutant.client()


# --- of the client --------------------------------------------------------------


def _repeat_every_call() -> None:
    from sokka_pg.calls.repeating import Tries
    from sokka_pg.errors import DatabaseUnavailable

    def may_repeat(self: Any, error: Any) -> bool:
        return (
            isinstance(error, DatabaseUnavailable)
            and error.detail.get("sent") is not False and not self._lost
        )

    Tries._may_repeat = may_repeat  # type: ignore[method-assign]


def _stay_disconnected() -> None:
    """Two of the crew, so that the others can bring the tasks to their end."""
    if os.environ.get("SOKKA_CHAOS_NAME") not in ("w1", "w2"):
        return
    from sokka_pg.errors import DatabaseUnavailable
    from sokka_pg.worker.link import Link

    connected = Link._connected

    async def once(self: Any) -> Any:
        if self.connects and (self._connection is None or self._connection.closed):
            raise DatabaseUnavailable("the connection is closed", {"sent": False})
        return await connected(self)

    Link._connected = once  # type: ignore[method-assign]


def _borrow_tokens() -> None:
    """Refused, it writes under the owner and token that it finds in the row."""
    from sokka_pg import calls
    from sokka_pg.errors import LeaseLost
    from sokka_pg.store import PgTaskStore
    from sokka_pg.store_async import AsyncPgTaskStore

    own, own_async = PgTaskStore._run, AsyncPgTaskStore._run

    def borrowed(call: Any, found: Any) -> Any:
        if found is None or found.token is None:
            return None
        params = {**call.params, "pid": found.pid, "token": str(found.token)}
        return dataclasses.replace(call, params=params)

    def run(self: Any, call: Any, connection: Any) -> Any:
        try:
            return own(self, call, connection)
        except LeaseLost:
            found = own(self, calls.get_task(call.params["task_id"]), None)
            if (again := borrowed(call, found)) is None:
                raise
            return own(self, again, connection)

    async def run_async(self: Any, call: Any, connection: Any) -> Any:
        try:
            return await own_async(self, call, connection)
        except LeaseLost:
            found = await own_async(self, calls.get_task(call.params["task_id"]), None)
            if (again := borrowed(call, found)) is None:
                raise
            return await own_async(self, again, connection)

    PgTaskStore._run = run  # type: ignore[method-assign]
    AsyncPgTaskStore._run = run_async  # type: ignore[method-assign]


def _tell_the_time() -> None:
    """Each session says what its process takes for the time."""
    from datetime import UTC, datetime

    from psycopg import AsyncConnection

    connect = AsyncConnection.connect

    async def telling(*args: Any, **options: Any) -> Any:
        made = await connect(*args, **options)
        said = f"{datetime.now(UTC).timestamp():.6f}"
        await made.execute(
            "select set_config('chaos.ahead',"
            " (cast(%s as numeric) - extract(epoch from clock_timestamp()))::text, false)", (said,)
        )
        return made

    AsyncConnection.connect = telling  # type: ignore[method-assign]


# --- all of them ----------------------------------------------------------------

_ANY_TOKEN = sql.Mutant(
    "an end asks for no token", sql.LOCKS, "queue",
    (
        (
            "if not sokka.lease_holds(v_task.status, v_task.pid, v_task.token,",
            "if not sokka.lease_holds(v_task.status, p_pid, p_token,",
        ),
    ),
    sql.ENDING,
)  # fmt: skip
_ANY_TOKEN_IN_BATCHES = (
    sql.named("a batch ends tasks by any token"),
    sql.named("a batch fails and puts to sleep by any token"),
)
_EARLY_SWEEP = sql.Mutant(
    "the sweep takes back by the id, from a list with what is nearly over", sql.SWEEP, "queue",
    (
        ("filter (where r.lease_expires_at <= p_now)",
         "filter (where r.lease_expires_at <= p_now + interval '700 ms')"),
        ("continue when v_task.status <> 'running' or v_task.lease_expires_at > v_now;",
         "continue when v_task.status <> 'running';"),
    ),
)  # fmt: skip
_LATE_EXTEND = sql.named("a batch revives leases that are over")
_LOW_FENCE = sql.Mutant(
    "a fence lets lower tokens by", "functions/fences/advance_fence.sql", "queue",
    (
        ("set token = excluded.token, advanced_at",
         "set token = greatest(f.token, excluded.token), advanced_at"),
        ("\n     where f.token <= excluded.token;", ";"),
    ),
)  # fmt: skip
_WORKERS_CLOCK = sql.Mutant(
    "a grant counts by the worker's clock", "functions/workers/claim.sql", "queue",
    (
        (
            "v_now := sokka.clock();",
            "v_now := sokka.clock() + coalesce(nullif(current_setting('chaos.ahead', true), ''),"
            " '0')::double precision * interval '1 second';",
        ),
    ),
    "create function sokka.grant_leases",
)  # fmt: skip

MUTANTS: dict[str, Mutant] = {
    "any-token": Mutant(
        "an end asks neither for the owner nor for the token", "storm", ("F2",),
        ("I3",), sql=(_ANY_TOKEN, *_ANY_TOKEN_IN_BATCHES),
    ),
    "early-sweep": Mutant(
        "the sweep takes back by the id alone, also what is only nearly over", "storm", ("F2",),
        ("I1",), sql=(_EARLY_SWEEP,),
    ),
    "late-extend": Mutant(
        "a heartbeat revives a lease that is over", "storm", ("F5",), ("I3", "I4"),
        sql=(_LATE_EXTEND,),
    ),
    "low-fence": Mutant(
        "the fence of the second database lets lower tokens by", "storm", ("F2",), ("E1",),
        seed=2, sql=(_LOW_FENCE,), where=EFFECTS,
    ),
    "early-answer": Mutant(
        "a commit is answered before it is on disk (synchronous_commit off)", "storm", ("F4",),
        ("P3",), setting="synchronous_commit = off",
    ),
    "no-standby": Mutant(
        "a commit is answered before the synchronous standby has it", "sync", ("F9",),
        ("I19",), setting="synchronous_commit = local",
    ),
    "repeated-enqueue": Mutant(
        "an enqueue without an id is sent again when its commit was not answered", "storm",
        ("F3", "F4"), ("I8",), seconds=40.0, workers=2, client=_repeat_every_call,
    ),
    "borrowed-token": Mutant(
        "a refused write is repeated under the owner and token found in the row", "storm",
        ("F2", "F5"), ("I3",), seconds=16.0, client=_borrow_tokens,
    ),
    "worker-clock": Mutant(
        "a lease is granted by the worker's clock", "storm", ("F8",), ("I4", "I10"),
        seconds=8.0, sql=(_WORKERS_CLOCK,), client=_tell_the_time,
    ),
    "no-reconnect": Mutant(
        "a worker whose connection broke never makes a new one", "storm", ("F3",), ("I22",),
        client=_stay_disconnected,
    ),
}  # fmt: skip
