from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from sokka_pg.embedded import Binaries, Server, dev_server, end_dev_server, running_url
from sokka_pg.embedded.postmaster import process_lives
from sokka_pg.errors import UsageError
from tests.embedded.processes import ROOT, Child, eventually

FORK = """
import os, sys
from sokka_pg.embedded.account import own_account
from sokka_pg.embedded.sharing import Membership, in_use
from pathlib import Path
folder, me = Path(sys.argv[1]), own_account()
mine = Membership(folder, me, shared=True)
wait, go = os.pipe()
child = os.fork()
if child == 0:
    os.close(go)
    os.read(wait, 1)
    os._exit(0)
os.close(wait)
print("last", mine.leave(), "used", in_use(folder, me), flush=True)
os.close(go)
os.waitpid(child, 0)
print("used", in_use(folder, me), flush=True)
"""


def answers(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("select 1").fetchone() == (1,)


def test_the_last_one_out_stops_the_server(home: Path, user: Callable[..., Child]) -> None:
    first, second = user(home / "data"), user(home / "data")
    pid, url = first.server()
    assert second.server() == (pid, url)
    first.leave()
    assert process_lives(pid)
    assert answers(url)
    second.leave()
    assert not process_lives(pid)


def test_processes_that_start_at_once_get_one_server(
    home: Path, user: Callable[..., Child]
) -> None:
    crowd = [user(home / "data") for _ in range(4)]
    found = {child.server() for child in crowd}
    assert len(found) == 1
    pid, url = found.pop()
    for child in crowd[:-1]:
        child.leave()
        assert answers(url)
    crowd[-1].leave()
    assert not process_lives(pid)


def test_the_server_outlives_a_starter_that_is_killed(
    home: Path, user: Callable[..., Child]
) -> None:
    starter, other = user(home / "data"), user(home / "data")
    pid, url = starter.server()
    other.server()
    starter.kill()
    assert answers(url)
    other.leave()
    assert not process_lives(pid)


def test_when_all_were_killed_the_next_user_joins_and_stops_it(
    home: Path, user: Callable[..., Child]
) -> None:
    crowd = [user(home / "data") for _ in range(2)]
    [(pid, url)] = {child.server() for child in crowd}
    for child in crowd:
        child.kill()
    assert answers(url)
    heir = user(home / "data")
    assert heir.server() == (pid, url)
    heir.leave()
    assert not process_lives(pid)


def test_a_shared_server_that_crashed_is_started_anew_by_who_comes_next(
    home: Path, any_binaries: Binaries, user: Callable[..., Child]
) -> None:
    with Server.start(home / "data", binaries=any_binaries, shared=True) as server:
        old = server.pid
        server.kill()
        newcomer = user(home / "data")
        new, url = newcomer.server()
        assert new != old
        assert url == server.url()
        newcomer.leave()
        assert process_lives(new)  # this process still uses it
    assert not process_lives(new)


def test_a_shared_server_restarts_for_everybody(
    home: Path, any_binaries: Binaries, user: Callable[..., Child]
) -> None:
    with Server.start(home / "data", binaries=any_binaries, shared=True) as server:
        other = user(home / "data")
        _, url = other.server()
        server.restart()
        assert answers(url)
        other.leave()
        assert answers(server.url())


def test_two_servers_of_one_process_count_as_two_users(
    home: Path, any_binaries: Binaries
) -> None:
    with Server.start(home / "data", binaries=any_binaries, shared=True) as one:
        pid = one.pid
        with Server.start(home / "data", shared=True) as two:
            assert two.pid == pid
        assert process_lives(pid)
    assert not process_lives(pid)


def test_a_private_start_waits_for_no_shared_one(home: Path, any_binaries: Binaries) -> None:
    with (
        Server.start(home / "data", binaries=any_binaries, shared=True),
        pytest.raises(UsageError, match="other processes use the server"),
    ):
        Server.start(home / "data")


def test_a_process_that_ends_without_stopping_leaves_all_the_same(
    home: Path, any_binaries: Binaries
) -> None:
    code = (
        "import sys; from sokka_pg.embedded import Server\n"
        "server = Server.start(sys.argv[1], shared=True)\n"
        "print(server.pid, flush=True); sys.stdin.readline()\n"
    )
    child = Child(code, home / "data", SOKKA_PG_BIN=str(any_binaries.bin_dir))
    pid = int(child.line())
    child._process.stdin.write(b"\n")  # type: ignore[union-attr]
    child._process.wait(60)
    child.end()
    eventually(lambda: not process_lives(pid))


def test_a_forked_child_goes_on_using_what_its_parent_left(tmp_path: Path) -> None:
    child = Child(FORK, tmp_path, PYTHONPATH=str(ROOT))
    assert child.line() == "last False used True"
    assert child.line() == "used False"
    child.end()


def test_a_kept_server_stays_until_it_is_ended(home: Path) -> None:
    with dev_server(home) as server:
        server.keep()
        pid, url = server.pid, server.url()
    assert running_url(home) == url
    with dev_server(home) as again:
        assert again.pid == pid
        with pytest.raises(UsageError, match="other processes use"):
            Server.start(home / "data")
    with pytest.raises(UsageError, match="is kept up; stop it first"):
        Server.start(home / "data")
    assert end_dev_server(home) == "stopped"
    assert running_url(home) is None
    assert end_dev_server(home) == "not running"


def test_being_kept_ends_with_that_run_of_the_server(home: Path) -> None:
    with dev_server(home) as server:
        server.keep()
        server.kill()
    with dev_server(home) as next_run:
        pid = next_run.pid
    assert not process_lives(pid)


def test_ending_waits_for_the_last_user_unless_forced(
    home: Path, user: Callable[..., Child]
) -> None:
    worker = user(home / "data")
    pid, url = worker.server()
    with dev_server(home) as server:
        server.keep()
    assert end_dev_server(home) == "in use"
    assert answers(url)
    worker.leave()
    assert not process_lives(pid)
    stubborn = user(home / "data")
    pid, _ = stubborn.server()
    assert end_dev_server(home, force=True) == "stopped"
    assert not process_lives(pid)
    stubborn.leave()


def test_a_folder_without_a_server_is_told_so(home: Path) -> None:
    assert running_url(home / "nothing") is None
    assert end_dev_server(home / "nothing") == "not running"
