"""The desk's wire: calls and refusals as by a cursor, whatever their size, until it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
import pytest_asyncio

from sokka_pg import calls
from sokka_pg.calls.exchanging import Exchanged
from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument, DatabaseUnavailable
from sokka_pg.worker import link as module
from sokka_pg.worker.link import Link
from sokka_pg.worker.wire import Wire, numbered


@pytest_asyncio.fixture
async def link(db: str) -> AsyncIterator[Link]:
    made = Link(db, "sokka", ConnectionOptions(application_name="desk"), 20.0)
    yield made
    await made.close()


def reserve(topic: str) -> calls.Call[Exchanged]:
    wanted = calls.reserving([topic], 10, timedelta(seconds=30), [10])
    return calls.exchange("w", [], [], [], wanted)


def test_arguments_are_numbered_by_their_first_place() -> None:
    assert numbered("select %(b)s, %(a)s, %(b)s, 'a %% b'") == (
        "select $1, $2, $1, 'a % b'", ("b", "a"),
    )  # fmt: skip


async def test_it_reserves_what_was_enqueued(link: Link, conn: psycopg.Connection) -> None:
    assert (await link.send(reserve("t"))).grants == []
    conn.execute("""select sokka.create_task('t', p_kind => 'ä', p_data => '{"n": [1, "ü"]}')""")
    [grant] = (await link.send(reserve("t"))).grants
    task = grant.read()
    assert (task.kind, task.data, task.pid) == ("ä", {"n": [1, "ü"]}, "w")
    assert task.lease_expires_at > task.leased_at
    assert link.connects == 1


async def test_what_is_larger_than_a_sockets_buffer_goes_both_ways(
    link: Link, conn: psycopg.Connection
) -> None:
    size = 1_000_000
    for _ in range(3):
        conn.execute(
            "select sokka.create_task('t', p_data => to_jsonb(repeat('x', %s)))", (size,)
        )
    grants = (await link.send(reserve("t"))).grants
    assert [grant.size for grant in grants] == [size + 2] * 3
    done = await link.send(calls.exchange(
        "w", [(grant.task_id, grant.token) for grant in grants], ["terminate"] * 3,
        ['"' + "ä" * 500_000 + '"'] * 3, calls.reserving([], 0, None, []),
    ))  # fmt: skip
    assert [verdict for verdict, _ in done.verdicts] == ["ok"] * 3


async def test_a_refusal_is_ours_and_the_next_call_gets_through(link: Link) -> None:
    with pytest.raises(BadArgument):
        await link.send(calls.mark_idle(["t"], "w", timedelta(days=400)))
    assert await link.send(calls.mark_idle(["t"], "w", timedelta(seconds=1)))


async def test_a_server_that_hangs_up_is_found_out_and_left(
    link: Link, conn: psycopg.Connection
) -> None:
    """Between two calls, and during one."""
    await link.send(reserve("t"))
    cut = (
        "select pg_terminate_backend(pid, 20000) from pg_stat_activity"
        " where application_name = 'desk'"
    )
    conn.execute(cut)
    with pytest.raises(DatabaseUnavailable):
        await link.send(reserve("t"))
    await link.send(reserve("t"))
    with conn.transaction():
        conn.execute("lock table sokka.tasks in access exclusive mode")
        waiting = asyncio.create_task(link.send(reserve("t")))
        async with asyncio.timeout(20):
            query = (
                "select count(*) from pg_stat_activity"
                " where application_name = 'desk' and wait_event_type = 'Lock'"
            )
            while conn.execute(query).fetchone() != (1,):
                conn.execute("select pg_stat_clear_snapshot()")
                await asyncio.sleep(0.01)
        conn.execute(cut)
        with pytest.raises(DatabaseUnavailable):
            await waiting
    await link.send(reserve("t"))
    assert link.connects == 3


async def test_a_call_that_takes_too_long_ends_though_the_socket_tells_nothing(
    db: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that was in error before it was shut."""
    link = Link(db, "sokka", ConnectionOptions(application_name="desk"), 0.3)
    await link.send(reserve("t"))
    monkeypatch.setattr(module, "shut", lambda connection: None)
    with conn.transaction():
        conn.execute("lock table sokka.tasks in access exclusive mode")
        async with asyncio.timeout(20):
            with pytest.raises(DatabaseUnavailable, match="no answer within"):
                await link.send(reserve("t"))
    await link.close()


@pytest.mark.parametrize(
    "options", [ConnectionOptions(pooler=True), ConnectionOptions(prepare_threshold=None)]
)
async def test_where_nothing_may_be_prepared_a_cursor_sends(
    db: str, monkeypatch: pytest.MonkeyPatch, options: ConnectionOptions
) -> None:
    monkeypatch.delattr(module, "Wire")
    link = Link(db, "sokka", options, 20.0)
    assert (await link.send(reserve("t"))).grants == []
    await link.close()


class Libpq:
    """A connection that has its rows, and is yet to hear that they are committed."""

    def __init__(self) -> None:
        self.committed = False
        self.results: list[object] = ["rows"]

    def consume_input(self) -> None: ...

    def is_busy(self) -> bool:
        return not self.results and not self.committed

    def get_result(self) -> object:
        assert not self.is_busy(), "the whole loop would wait here"
        return self.results.pop() if self.results else None


class TellsOnce:
    """A loop that tells of a socket in error once, and no more until it is asked anew."""

    def __init__(self) -> None:
        self.tells = False
        self.asked = True

    def remove_reader(self, socket: int) -> None:
        self.asked = False

    def add_reader(self, socket: int, callback: object) -> None:
        # who is there already is only replaced by another
        self.tells = self.tells or not self.asked
        self.asked = True


async def test_after_a_part_of_an_answer_the_loop_is_asked_anew() -> None:
    """An end that came along with that part is not told of again."""
    wire = Wire.__new__(Wire)
    wire._pgconn = Libpq()  # type: ignore[assignment]
    wire._loop = loop = TellsOnce()  # type: ignore[assignment]
    wire._socket = 3
    wire._answer, wire._last = asyncio.get_running_loop().create_future(), None
    wire._readable()
    assert (wire._answer.done(), loop.tells) == (False, True)


async def test_the_loop_goes_on_between_the_rows_and_their_commit() -> None:
    wire = Wire.__new__(Wire)
    wire._loop, wire._socket = TellsOnce(), 3  # type: ignore[assignment]
    wire._pgconn = libpq = Libpq()  # type: ignore[assignment]
    wire._answer, wire._last = asyncio.get_running_loop().create_future(), None
    wire._readable()
    assert not wire._answer.done()
    libpq.committed = True
    wire._readable()
    assert await wire._answer == "rows"
