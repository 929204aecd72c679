from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from sokka_pg.embedded import Binaries, Server
from sokka_pg.errors import UsageError
from tests.embedded.processes import eventually


def ask(server: Server, query: str, tcp: bool = False) -> object:
    with psycopg.connect(server.url(tcp=tcp), autocommit=True) as connection:
        cursor = connection.execute(query)
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def test_a_standby_streams_takes_over_and_the_old_primary_follows_it(
    binaries: Binaries, home: Path
) -> None:
    with (
        Server.start(home / "one", binaries=binaries, listen="127.0.0.1") as one,
        one.base_backup(home / "two", listen="127.0.0.1") as two,
    ):
        assert two.data_dir == (home / "two").resolve()
        ask(one, "create table t as select 1 as n")
        eventually(lambda: ask(two, "select to_regclass('t') is not null", tcp=True) is True)
        one.kill()
        two.promote()
        ask(two, "insert into t values (2)")
        one.restart()
        ask(one, "insert into t values (-1)")  # written by a primary that lost its place
        one.follow(two)
        assert ask(one, "select pg_is_in_recovery()") is True
        eventually(lambda: ask(one, "select sum(n) from t") == 3)
        with pytest.raises(UsageError, match="is no standby"):
            two.promote()


def test_a_synchronous_standby_is_named_by_its_cluster_name(
    any_binaries: Binaries,
) -> None:
    with (
        Server.temporary(binaries=any_binaries) as primary,
        primary.base_backup(settings={"cluster_name": "second"}) as standby,
    ):
        ask(primary, "alter system set synchronous_standby_names = 'second'")
        ask(primary, "select pg_reload_conf()")
        state = "select sync_state from pg_stat_replication where application_name = 'second'"
        eventually(lambda: ask(primary, state) == "sync")
        ask(primary, "create table t ()")
        primary.kill()
        standby.promote()
        assert ask(standby, "select to_regclass('t') is not null") is True


def test_a_backup_does_not_overwrite_a_cluster(any_binaries: Binaries, home: Path) -> None:
    with Server.start(home / "one", binaries=any_binaries) as one:
        Server.start(home / "two", binaries=any_binaries).stop()
        with pytest.raises(UsageError, match="already holds a cluster"):
            one.base_backup(home / "two")


def test_binaries_without_pg_basebackup_are_told_plainly(
    any_binaries: Binaries, tmp_path: Path
) -> None:
    with Server.temporary(binaries=any_binaries) as server:
        server._programs = tmp_path
        with pytest.raises(UsageError, match="came without pg_basebackup"):
            server.base_backup()
