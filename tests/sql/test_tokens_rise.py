"""Tokens rise over everything that can set a sequence back: crashes, copies, failovers.

Each test has servers of its own, and takes the database's word for nothing: the
tokens are remembered here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from sokka_pg import embedded
from tests import servers
from tests.sql.calling import DEADLINE_S, Queue

COUNT = 40


@pytest.fixture
def binaries(server: servers.Server) -> embedded.Binaries:
    found = embedded.all_binaries()
    return next((b for b in found if b.version == server.major), found[-1])


@pytest.fixture
def primary(binaries: embedded.Binaries) -> Iterator[embedded.Server]:
    with embedded.Server.temporary(binaries=binaries) as server:
        servers.load_newest(server.url())
        with closing(psycopg.connect(server.url(), autocommit=True)) as connection:
            Queue(connection).create("t")
        yield server


def draw(url: str, *, durable: bool = True) -> list[int]:
    """Tokens of so many grants of one task."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        queue = Queue(connection)
        if not durable:
            queue.execute("set synchronous_commit = off")
        tokens = []
        for _ in range(COUNT):
            lease = queue.reserve("t")
            tokens.append(lease.token)
            queue.verb("release_lease", lease)
    assert tokens == sorted(set(tokens))
    return tokens


def free(url: str) -> None:
    """Give the task back, whatever was lost on the way."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        queue = Queue(connection)
        for row in queue.rows("select * from sokka.tasks where status = 'running'"):
            queue.one("revoke_lease", task_id=row.task_id, record_ver=row.record_ver)


def answering(url: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "the server did not come back"
            time.sleep(0.02)


def test_over_a_restart_and_two_crashes(primary: embedded.Server) -> None:
    before = draw(primary.url())
    for bring_down in (lambda: None, primary.crash, primary.kill):
        bring_down()
        primary.restart()
        free(primary.url())
        after = draw(primary.url())
        assert min(after) > max(before)
        before = after


def test_over_a_crash_that_lost_commits(primary: embedded.Server) -> None:
    before = draw(primary.url(), durable=False)
    for _ in range(3):
        primary.kill()
        primary.restart()
        free(primary.url())
        after = draw(primary.url(), durable=False)
        assert min(after) > max(before)
        before = after


def test_over_the_death_of_one_backend(primary: embedded.Server) -> None:
    """All others restart with it, and the postmaster stays; on 14 only what was flushed counts."""
    before = draw(primary.url(), durable=primary.version < 15)
    for _ in range(3):
        with (
            closing(psycopg.connect(primary.url())) as victim,
            closing(psycopg.connect(primary.url())) as bystander,
        ):
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            # not the victim's own end: the postmaster may still be about to notice
            with pytest.raises(psycopg.OperationalError):
                while True:
                    bystander.execute("select pg_sleep(0.01)")
        answering(primary.url())
        free(primary.url())
        after = draw(primary.url(), durable=primary.version < 15)
        assert min(after) > max(before)
        before = after


def test_in_a_copy_of_the_database(primary: embedded.Server) -> None:
    with closing(psycopg.connect(primary.url("template1"), autocommit=True)) as connection:
        connection.execute("create database origin template postgres")
        before = draw(primary.url("origin"))
        connection.execute("create database copy template origin")
        in_the_origin = draw(primary.url("origin"))
    free(primary.url("copy"))
    assert min(draw(primary.url("copy"))) > max(before + in_the_origin)


def test_after_a_dump_was_restored(primary: embedded.Server) -> None:
    dumped = draw(primary.url())
    program = primary.bin_dir / "pg_dump"
    dump = subprocess.run(
        [program, "--format=custom", "--dbname", primary.url()], stdout=subprocess.PIPE, check=True
    ).stdout
    later = draw(primary.url())
    with closing(psycopg.connect(primary.url(), autocommit=True)) as connection:
        connection.execute("create database restored template template0")
    subprocess.run(
        [primary.bin_dir / "pg_restore", "--exit-on-error", "--dbname", primary.url("restored")],
        input=dump, check=True,
    )  # fmt: skip
    free(primary.url("restored"))
    assert min(draw(primary.url("restored"))) > max(dumped + later)
    with closing(psycopg.connect(primary.url("restored"), autocommit=True)) as connection:
        queue = Queue(connection)
        (row,) = queue.rows("select * from sokka.tasks")
        events = queue.events(row.task_id)
        assert events.count("reserved") == 2 * COUNT


def test_on_a_standby_that_lost_commits(primary: embedded.Server) -> None:
    seen = draw(primary.url())
    with primary.base_backup() as standby:
        standby.crash()
        lost = draw(primary.url())
        primary.kill()
        standby.restart()
        standby.promote()
        free(standby.url())
        after = draw(standby.url())
        assert min(after) > max(seen + lost)
        assert draw(standby.url())[0] > after[-1]


def test_on_two_standbys_promoted_in_turn(primary: embedded.Server) -> None:
    """Both count their timeline from the same one, and give it the same number."""
    draw(primary.url())
    with primary.base_backup() as first, primary.base_backup() as second:
        second.crash()
        primary.kill()
        first.promote()
        on_the_first = draw(first.url())
        first.kill()
        second.restart()
        second.promote()
        free(second.url())
        assert min(draw(second.url())) > max(on_the_first)


def test_above_an_epoch_raised_by_hand(fresh: Queue) -> None:
    fresh.create("t")
    before = fresh.reserve("t")
    fresh.verb("release_lease", before)
    (row,) = fresh.rows("select sokka.raise_token_epoch('restored from a file') as floor")
    assert row.floor > before.token
    assert fresh.reserve("t").token > row.floor
    (act,) = fresh.rows("select * from sokka.audit_log where action = 'raise_token_epoch'")
    assert (act.reason, act.detail["floor"]) == ("restored from a file", row.floor)


def test_a_token_fits_into_a_double(fresh: Queue) -> None:
    """JSON readers in other languages keep 53 bits of a number."""
    assert fresh.leased("t").token < 2**53
