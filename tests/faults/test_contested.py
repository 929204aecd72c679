"""Tasks that a worker and somebody else want to end, keys that two tasks want, and chance."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest

from sokka_pg import Sokka, TaskContext
from sokka_pg.errors import SokkaError, UniqueKeyTaken
from sokka_pg.events import Finished, Retried
from sokka_pg.store import PgTaskStore
from tests.faults import auditing
from tests.faults.conftest import Working
from tests.faults.processes import WorkerProcess
from tests.faults.waiting import Seen, until, until_async

Row = Callable[[Any], dict[str, Any]]
Start = Callable[..., WorkerProcess]

SEED = "SOKKA_TEST_SEED"
SWEEP_EVERY_S = 0.05
_HOLDERS = "select distinct pid from sokka.live_leases"
_HELD_BY = "select count(*) from sokka.live_leases where pid = %s"
_UNFINISHED = "select count(*) from sokka.tasks"
_BACKENDS = """
    select pid from pg_stat_activity
     where datname = current_database() and application_name = 'sokka_pg' order by pid"""


@pytest.fixture
def start(db: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def made(name: str, *arguments: str) -> WorkerProcess:
            process = WorkerProcess(
                db, tmp_path, "--pid", name, "--grace", "0s", *arguments, name=name
            )
            stack.callback(process.kill)
            stack.callback(process.resume)
            return process

        yield made


@pytest.fixture
def sweeping(db: str) -> Iterator[Callable[[], None]]:
    """Starts a session of its own that sweeps all the while."""
    over = threading.Event()

    def sweep() -> None:
        with psycopg.connect(db, autocommit=True, application_name="sweeper") as session:
            while not over.wait(SWEEP_EVERY_S):
                session.execute("select sokka.sweep()")

    thread = threading.Thread(target=sweep)
    yield thread.start
    over.set()
    thread.join(20)


def test_a_silent_worker_and_the_sweep_never_end_the_same_task_both(
    start: Start, sweeping: Callable[[], None], db: str, conn: psycopg.Connection
) -> None:
    count, dice = 500, random.Random(2)
    names = [f"w{n}" for n in range(4)]
    workers = {
        name: start(name, "--topics", "t:10", "--lease", "300ms")
        for name in names
    }
    for worker in workers.values():
        worker.serving()
    with PgTaskStore(db) as store:
        store.create_tasks(
            {"topic": "t", "kind": "wait_for", "max_attempts": 1, "max_losses": 0,
             "data": {"seconds": dice.uniform(0.25, 0.35)}}
            for _ in range(count)
        )
    sweeping()
    for name in names:
        until(lambda name=name: (name,) in conn.execute(_HOLDERS).fetchall(), f"a lease of {name}")
        # silent, and just about to finish: when it wakes, the sweep was there before
        workers[name].pause()
        until(lambda name=name: conn.execute(_HELD_BY, (name,)).fetchone() == (0,), "a sweep")
        workers[name].resume()
    until(lambda: conn.execute(_UNFINISHED).fetchone() == (0,), "the end of all", 60)
    for worker in workers.values():
        assert worker.process.poll() is None, worker.log
        worker.process.terminate()
    assert [worker.wait() for worker in workers.values()] == [0] * len(names)
    ended = auditing.endings(conn)
    assert sum(ended.values()) == count
    assert set(ended) == {"failed", "terminated"}
    codes = conn.execute(
        "select distinct error ->> 'code' from sokka.all_tasks where status = 'failed'"
    ).fetchall()
    assert codes == [("lease_lost",)]
    auditing.check_records(conn)
    auditing.check_leases(conn)


def test_a_unique_key_stays_with_its_task_through_every_retry(
    db: str, row: Row, conn: psycopg.Connection
) -> None:
    with PgTaskStore(db) as store:
        first = store.create_task("t", unique_key="k")
        _fail(store, first)
        second = store.create_task("t", unique_key="k", retry=10)
        assert second.task_id != first.task_id

        def check(status: str) -> None:
            assert row(second)["status"] == status
            again = store.create_task("t", unique_key="k")
            assert (again.task_id, again.created) == (second.task_id, False)
            with pytest.raises(UniqueKeyTaken) as refused:
                store.resubmit(first.task_id)
            assert refused.value.detail["task_id"] == str(second.task_id)
            assert "k" in str(refused.value)

        for failures in range(5):
            check("starting")
            (lease,) = store.reserve_tasks(["t"], "w", 5, lease=60)
            check("running")
            later = timedelta(hours=1) if failures % 2 else timedelta(0)
            store.retry(lease, error={"code": "error", "message": "again"}, delay=later)
            if later:
                check("snoozed")
                conn.execute("update sokka.tasks set run_at = clock_timestamp()")
            store.sweep()
        assert row(second)["failures"] == 5
        (lease,) = store.reserve_tasks(["t"], "w", 5, lease=60)
        store.terminate(lease, result="done")
        third = store.resubmit(first.task_id)
        assert store.create_task("t", unique_key="k").task_id == third.task_id
    auditing.check_records(conn)


def _fail(store: PgTaskStore, task: Any) -> None:
    lease = store.acquire_lease(task.task_id, "w", lease=60)
    store.fail(lease, error={"code": "error", "message": "final"})


async def test_a_worker_retries_a_task_whose_key_others_want_meanwhile(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    refused: list[UniqueKeyTaken] = []

    @app.task(topic="t", retry={"max_attempts": 6, "initial": 0.01})
    async def stubborn(ctx: TaskContext, resubmit: str) -> int:
        try:
            await app.async_store.resubmit(resubmit)
        except UniqueKeyTaken as error:
            refused.append(error)
        if ctx.attempt < 6:
            raise RuntimeError("not yet")
        return ctx.attempt

    first = app.store.create_task("t", unique_key="k")
    _fail(app.store, first)
    second = stubborn.configure(unique_key="k").enqueue(str(first.task_id))
    async with working("t"):
        await until_async(lambda: seen.all(Finished), "the end")
    assert (row(second)["result"], row(second)["failures"]) == (6, 5)
    assert len(seen.all(Retried)) == 5
    assert [error.detail["task_id"] for error in refused] == [str(second.task_id)] * 6


class Chance:
    """Random operations on a queue whose workers and connections die at random."""

    def __init__(self, db: str, conn: psycopg.Connection, start: Start, seed: int) -> None:
        self.dice = random.Random(seed)
        self.conn, self._start = conn, start
        self.store = PgTaskStore(db)
        self.known: list[Any] = []
        self.started = 0
        self.workers = dict(self._new_worker() for _ in range(2))

    def _new_worker(self) -> tuple[str, WorkerProcess]:
        self.started += 1
        name = f"w{self.started}"
        return name, self._start(
            name, "--app", "tests.faults.fates:app", "--topics", "t:5",
            "--lease", "300ms", "--log-level", "error",
        )

    def first_task(self) -> None:
        data = {"how": "done", "seconds": 0}
        self.known.append(self.store.create_task("t", data, kind="fate").task_id)

    def step(self) -> None:
        # An instant that nothing chose: this is no wait for anything.
        threading.Event().wait(self.dice.uniform(0, 0.1))
        for _ in range(self.dice.randrange(1, 6)):
            with suppress(SokkaError):
                self.dice.choice((self.enqueue, self.enqueue, self.operate))()
        self.dice.choice((self.end_a_backend, self.end_a_backend, self.kill_worker))()

    def enqueue(self) -> None:
        fate = self.dice.choice(("done", "done", "fail", "retry", "snooze"))
        data = {"how": fate, "seconds": self.dice.uniform(0, 0.1)}
        key = self.dice.choice((None, "a", "b"))
        run_at = None
        if self.dice.random() < 0.2:
            (run_at,) = self.conn.execute(
                "select clock_timestamp() + make_interval(secs => %s)", (self.dice.random(),)
            ).fetchone() or (None,)
        self.known.append(
            self.store.create_task(
                "t", data, kind="fate", unique_key=key, run_at=run_at, max_losses=2,
                retry={"max_attempts": 20, "initial": 0.05, "max": 0.2},
            ).task_id
        )

    def operate(self) -> None:
        if not self.known:
            return
        task_id = self.dice.choice(self.known[-10:])
        verb = self.dice.choice(("cancel", "revoke", "resubmit"))
        if verb == "cancel":
            self.store.cancel(task_id)
        elif verb == "resubmit":
            self.known.append(self.store.resubmit(task_id).task_id)
        elif (found := self.store.task(task_id)) is not None:
            self.store.revoke_lease(task_id, found.record_ver)

    def end_a_backend(self) -> None:
        """One of the worker's, or the store's own."""
        found = self.conn.execute(_BACKENDS).fetchall()
        if found:
            self.conn.execute("select pg_terminate_backend(%s)", self.dice.choice(found))

    def kill_worker(self) -> None:
        """One that holds a lease: before, it has nothing to lose."""
        holders = {pid for (pid,) in self.conn.execute(_HOLDERS).fetchall()}
        if busy := sorted(holders & self.workers.keys()):
            name = self.dice.choice(busy)
            self.workers.pop(name).kill()
            self.workers.update([self._new_worker()])

    def stop(self) -> None:
        """Everything of the product, however it stands."""
        for worker in self.workers.values():
            worker.kill()
        self.store.close()
        until(lambda: not self.conn.execute(_BACKENDS).fetchall(), "the end of all connections")


def test_whatever_dies_at_whatever_instant_no_task_is_left_without_a_way_out(
    db: str, conn: psycopg.Connection, start: Start
) -> None:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(10**6))
    print(f"{SEED}={seed}")  # the operations are the same again, the instants nearly
    chance = Chance(db, conn, start, seed)
    chance.first_task()
    until(lambda: conn.execute(_UNFINISHED).fetchone() == (0,), "the first task's end")
    end = monotonic() + 10
    for _ in range(150):
        chance.step()
        if monotonic() > end:
            break
    chance.stop()
    _check_ways_out(conn)
    auditing.check_records(conn)
    auditing.check_leases(conn)
    _check_keys(db, conn)
    _check_all_can_be_reserved(conn)


def _check_ways_out(conn: psycopg.Connection) -> None:
    """Each unfinished task may be reserved now, or at an instant that is written down."""
    conn.execute("select sokka.sweep(10000)")
    stuck = conn.execute(
        "select task_id, status from sokka.tasks"
        " where not (status = 'starting' and pid is null and token is null"
        "    or status = 'snoozed' and pid is null and token is null and run_at is not null"
        "    or status = 'running' and pid is not null and lease_expires_at is not null"
        "       and lease_expires_at < clock_timestamp() + interval '1 minute')"
    ).fetchall()
    assert stuck == []
    held = "select task_id, pid, token from sokka.all_tasks a where finished_at is not null"
    assert conn.execute(f"{held} and exists (select from sokka.tasks t"
                        " where t.task_id = a.task_id)").fetchall() == []
    assert conn.execute("select task_id from sokka.live_leases join sokka.finished_tasks"
                        " using (task_id)").fetchall() == []


def _check_keys(db: str, conn: psycopg.Connection) -> None:
    """A key belongs to an unfinished task or to nobody."""
    with PgTaskStore(db) as store:
        for key in ("a", "b"):
            holder = conn.execute(
                "select task_id from sokka.tasks where unique_key = %s", (key,)
            ).fetchone()
            made = store.create_task("t", unique_key=key, kind="fate")
            assert made.created == (holder is None)
            assert holder in (None, (made.task_id,))


def _check_all_can_be_reserved(conn: psycopg.Connection) -> None:
    """By somebody who does nothing but ask."""
    reserved: set[Any] = set()

    def all_mine() -> bool:
        found = conn.execute(
            "select task_id from sokka.reserve_tasks(array['t'], 'auditor', 10000, '1 hour')"
        ).fetchall()
        reserved.update(task_id for (task_id,) in found)
        left = {task_id for (task_id,) in conn.execute("select task_id from sokka.tasks")}
        return left <= reserved

    until(all_mine, "a way out of each unfinished task")
