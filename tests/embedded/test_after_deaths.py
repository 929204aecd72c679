"""kill -9, reused pids, half-made clusters, strangers: the next start must do right."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from sokka_pg.embedded import Binaries, Server, all_binaries
from sokka_pg.embedded.cache import reachable
from sokka_pg.embedded.cluster import record
from sokka_pg.embedded.place import locate
from sokka_pg.embedded.postmaster import process_lives
from sokka_pg.errors import DatabaseUnavailable, UsageError
from tests.embedded.processes import Child, bystander, eventually


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return row and row[0]


def test_a_private_server_ends_when_its_starter_is_killed(
    home: Path, user: Callable[..., Child]
) -> None:
    starter = user(home / "data", "private")
    pid, _ = starter.server()
    starter.kill()
    eventually(lambda: not process_lives(pid))


def test_a_start_right_after_kill_9_of_the_starter_finds_everything_committed(
    home: Path, user: Callable[..., Child]
) -> None:
    starter = user(home / "data", "private")
    old, url = starter.server()
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 1")
    starter.kill()
    with Server.start(home / "data") as server:
        assert server.pid != old
        assert ask(server.url(), "select count(*) from kept") == 1


def test_an_orphan_whose_watch_died_too_is_stopped_by_the_next_start(
    home: Path, any_binaries: Binaries
) -> None:
    server = Server.start(home / "data", binaries=any_binaries)
    orphan = server.pid
    # As if the process had been killed: its lock is gone, its server is not.
    server._membership.leave()
    with Server.start(home / "data", binaries=any_binaries) as successor:
        assert successor.pid != orphan
        assert not process_lives(orphan)
    server.stop()


def test_a_dead_cluster_whose_recorded_pid_was_reused_starts(
    binaries: Binaries, home: Path
) -> None:
    with Server.start(home / "data", binaries=binaries) as server:
        data_dir, socket_dir = server.data_dir, server.log.parent
        server.kill()
        pid_file, lock = data_dir / "postmaster.pid", socket_dir / ".s.PGSQL.5432.lock"
        with bystander(data_dir.stat().st_uid) as stranger:
            for file in (pid_file, lock):
                rest = file.read_text().split("\n", 1)[1]
                file.write_text(f"{stranger}\n{rest}")
            account = locate(home / "data").account
            with pytest.raises(DatabaseUnavailable, match="lock file"):  # the trap itself
                programs = reachable(binaries, account)
                account.run([programs / "postgres", "-D", data_dir, "-k", socket_dir, "-h", ""])
            server.restart()
            assert ask(server.url(), "select 1") == 1
            assert process_lives(stranger)


@pytest.mark.parametrize("text", ["", "12", "not a pid\n\n\n\n\n", "99999999\n/x\n0\n5432\n/x\n"])
def test_a_torn_or_strange_pid_file_does_not_stop_a_start(
    any_binaries: Binaries, home: Path, text: str
) -> None:
    with Server.start(home / "data", binaries=any_binaries) as server:
        server.kill()
        (server.data_dir / "postmaster.pid").write_text(text)
        server.restart()
        assert ask(server.url(), "select 1") == 1


def test_a_postmaster_that_the_kernel_killed_is_replaced(binaries: Binaries, home: Path) -> None:
    with Server.start(home / "data", binaries=binaries) as server:
        postmaster = server._running()
        with psycopg.connect(server.url()):
            os.kill(server.pid, signal.SIGKILL)
            postmaster.wait(60)
        server.restart()
        assert ask(server.url(), "select 1") == 1


def test_a_live_server_that_answers_nowhere_is_not_run_over(
    any_binaries: Binaries, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sokka_pg.embedded.server.APPEARING_SECONDS", 0.0)
    with Server.start(home / "data", binaries=any_binaries, shared=True) as server:
        pid = server.pid
        (server.log.parent / f".s.PGSQL.{server.port}").unlink()
        with pytest.raises(DatabaseUnavailable, match=rf"pid {pid}\) runs on .*does not answer"):
            Server.start(home / "data", shared=True)
        assert process_lives(pid)
        server.kill()


def test_a_server_that_somebody_else_runs_there_is_left_alone(
    any_binaries: Binaries, home: Path, open_folder: Path
) -> None:
    Server.start(home / "data", binaries=any_binaries).stop()
    place = locate(home / "data")
    options = place.account.child_options()
    sockets = open_folder / "s"
    sockets.mkdir()
    os.chown(sockets, place.account.uid, place.account.gid)
    programs = reachable(any_binaries, place.account)
    stranger = subprocess.Popen(
        [programs / "postgres", "-D", place.data_dir, "-k", sockets, "-h", ""],
        stderr=subprocess.DEVNULL, **options,
    )
    try:
        eventually(lambda: bool((found := record(place.data_dir)) and found.listening()))
        for shared in (False, True):
            with pytest.raises(UsageError, match="not started here already runs"):
                Server.start(home / "data", shared=shared)
        assert stranger.poll() is None
    finally:
        stranger.send_signal(signal.SIGINT)
        stranger.wait()


def test_a_private_server_is_not_shared_nor_started_twice(
    any_binaries: Binaries, home: Path
) -> None:
    with Server.start(home / "data", binaries=any_binaries) as server:
        with pytest.raises(UsageError, match="other processes use the server"):
            Server.start(home / "data")
        with pytest.raises(UsageError, match="runs a private server"):
            Server.start(home / "data", shared=True)
        assert ask(server.url(), "select 1") == 1


def test_half_of_an_initdb_is_swept_away(any_binaries: Binaries, home: Path) -> None:
    Server.start(home / "data", binaries=any_binaries).stop()
    real = (home / "data").resolve()
    shutil.rmtree(real)
    half = real.with_name("data.new-00c0ffee")
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    owner = real.parent.stat()
    os.chown(half, owner.st_uid, owner.st_gid)
    with Server.start(home / "data", binaries=any_binaries) as server:
        assert server.data_dir == real
        assert not half.exists()


def test_a_cluster_of_another_major_is_told_plainly(any_binaries: Binaries, home: Path) -> None:
    Server.start(home / "data", binaries=any_binaries).stop()
    real = (home / "data").resolve()
    (real / "PG_VERSION").write_text("11\n")
    with pytest.raises(UsageError, match=r"made by PostgreSQL 11, .* SOKKA_PG_BIN"):
        Server.start(home / "data")
    (real / "PG_VERSION").write_text("eleven\n")
    with pytest.raises(UsageError, match="names no version"):
        Server.start(home / "data")


def test_the_programs_that_made_the_cluster_are_chosen_when_there_are_several(home: Path) -> None:
    for binaries in all_binaries():
        folder = home / f"made by {binaries.version}"
        Server.start(folder, binaries=binaries).stop()
        with Server.start(folder) as server:
            assert server.version == binaries.version
        for other in all_binaries():
            if other.version != binaries.version:
                with pytest.raises(UsageError, match=f"was made by PostgreSQL {binaries.version}"):
                    Server.start(folder, binaries=other)


def test_a_folder_with_something_else_in_it_is_refused(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError):
        Server.start(home / "data")
    assert (home / "data" / "thesis.txt").read_text() == "years of work"
