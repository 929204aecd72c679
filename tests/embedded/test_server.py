from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from sokka_pg.embedded import Binaries, Server
from sokka_pg.embedded.place import SOCKET_PATH_BYTES
from sokka_pg.embedded.postmaster import children_of, process_lives
from sokka_pg.errors import DatabaseUnavailable, UsageError
from tests.embedded.processes import nobody


def ask(server: Server, query: str) -> object:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return row[0] if row and len(row) == 1 else row


def do(server: Server, statement: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(statement)


def test_a_new_server_is_durable_checksummed_utf8_and_without_a_tcp_port(
    binaries: Binaries, home: Path
) -> None:
    with Server.start(home / "data", binaries=binaries) as server:
        assert server.version == binaries.version
        assert server.bin_dir == binaries.bin_dir
        settings = "select string_agg(setting, ',' order by name) from pg_settings where name = any"
        names = ["data_checksums", "fsync", "full_page_writes", "listen_addresses"]
        assert ask(server, f"{settings} ('{{{','.join(names)}}}')") == "on,on,on,"
        facts = "select pg_encoding_to_char(encoding), datcollate, datctype from pg_database"
        assert ask(server, f"{facts} where datname = 'postgres'") == ("UTF8", "C", "C")


def test_postgres_is_a_direct_child_that_ctrl_c_does_not_reach(any_binaries: Binaries) -> None:
    with Server.temporary(binaries=any_binaries) as server:
        assert server.pid in children_of(os.getpid())
        assert os.getsid(server.pid) != os.getsid(0)


def test_data_outlive_stop_and_start(binaries: Binaries, home: Path) -> None:
    with Server.start(home / "data", binaries=binaries) as server:
        do(server, "create table kept as select 1 as one")
    assert not server.running
    with Server.start(home / "data") as again:
        assert again.version == binaries.version
        assert ask(again, "select one from kept") == 1


def test_restart_crash_and_kill_keep_what_was_committed_and_the_address(
    binaries: Binaries, home: Path
) -> None:
    with Server.start(home / "data", binaries=binaries, listen="127.0.0.1") as server:
        url, tcp = server.url(), server.url(tcp=True)
        do(server, "create table kept (how text)")
        for end in (server.restart, server.crash, server.kill):
            with psycopg.connect(url, autocommit=True) as open_at_the_end:
                open_at_the_end.execute("insert into kept values (%s)", (end.__name__,))
                end()
            if end != server.restart:
                assert not server.running
                server.restart()
            assert (server.url(), server.url(tcp=True)) == (url, tcp)
        assert ask(server, "select string_agg(how, ' ') from kept") == "restart crash kill"
        psycopg.connect(tcp).close()


def test_kill_leaves_no_process_of_the_server(binaries: Binaries) -> None:
    with Server.temporary(binaries=binaries) as server:
        with psycopg.connect(server.url()) as connection:
            family = [server.pid, connection.info.backend_pid, *children_of(server.pid)]
            server.kill()
        assert not [pid for pid in family if process_lives(pid)]
        with pytest.raises(UsageError, match="is not running"):
            server.kill()


def test_a_temporary_server_leaves_no_trace(any_binaries: Binaries) -> None:
    with Server.temporary(binaries=any_binaries) as server:
        folder = server.data_dir.parent
        assert folder.exists()
    assert not folder.exists()
    server.stop()
    with pytest.raises(UsageError, match="start it anew"):
        server.restart()


def test_settings_reach_the_server_and_those_of_the_launcher_are_refused(
    any_binaries: Binaries, home: Path
) -> None:
    with Server.start(
        home / "data", binaries=any_binaries, settings={"max_connections": "17"}
    ) as server:
        assert ask(server, "show max_connections") == "17"
        assert ask(server, "select 1 from (values (1)) as v") == 1
        do(server, "alter system set work_mem = '5MB'")
        do(server, "select pg_reload_conf()")
    for name in ("port", "Listen_Addresses", "data_directory"):
        with pytest.raises(UsageError, match=f"settings: {name} is the launcher's own"):
            Server.start(home / "data", settings={name: "1"})
    with pytest.raises(UsageError, match="is no name of a setting"):
        Server.start(home / "data", settings={"a b": "1"})


def test_a_server_that_cannot_come_up_says_why_and_can_be_started_later(
    any_binaries: Binaries, home: Path
) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"did not start.*no_such_setting"):
        Server.start(home / "data", binaries=any_binaries, settings={"no_such_setting": "1"})
    with Server.start(home / "data", binaries=any_binaries) as server:
        assert ask(server, "select 1") == 1


def test_the_environment_of_the_caller_does_not_leak_into_the_server(
    binaries: Binaries, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "LANG": "xx_YY.UTF-8", "LC_ALL": "xx_YY.UTF-8", "LC_MESSAGES": "xx_YY",
        "PGDATA": "/nowhere", "PGPORT": "1", "PGHOST": "nowhere.invalid", "PGUSER": "stranger",
        "PGDATABASE": "absent", "PGOPTIONS": "-c no_such=1", "PGSSLMODE": "require", "HOME": "/x",
    }.items():
        monkeypatch.setenv(name, value)
    with Server.start(home / "data", binaries=binaries) as server:
        assert server.running
        with server.base_backup() as standby:
            assert standby.running


@pytest.mark.parametrize("folder", ["Zürich", "long/" + "x" * 60 + "/" + "y" * 60])
def test_long_folders_and_other_alphabets_work_too(
    any_binaries: Binaries, open_folder: Path, folder: str
) -> None:
    place = own_place(open_folder, folder)
    with Server.start(place, binaries=any_binaries) as server:
        assert server.data_dir == place
        assert len(os.fsencode(socket_file(server))) <= SOCKET_PATH_BYTES


def own_place(open_folder: Path, name: str) -> Path:
    """An empty folder that even root uses where it is."""
    place = open_folder / name
    place.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(place, nobody().pw_uid, nobody().pw_gid)
    return place


def socket_file(server: Server) -> Path:
    folder = str(ask(server, "show unix_socket_directories"))
    return Path(folder) / f".s.PGSQL.{server.port}"


def test_a_folder_with_spaces_commas_and_quotes_has_its_socket_in_a_short_private_one(
    binaries: Binaries, open_folder: Path
) -> None:
    place = own_place(open_folder, "spaces, commas and 'quotes'")
    with Server.start(place, binaries=binaries) as server:
        assert server.data_dir == place
        path = socket_file(server).parent
        assert path != place.with_name(place.name + ".run")
        assert path.stat().st_mode & 0o777 == 0o700
        assert urlsplit(server.url()).query == f"host={path}&port={server.port}"
        server.restart()
        with server.base_backup() as standby:
            assert ask(standby, "select pg_is_in_recovery()") is True
    assert not path.exists()


def test_the_socket_of_a_shared_server_is_found_although_its_folder_has_spaces(
    any_binaries: Binaries, open_folder: Path
) -> None:
    place = own_place(open_folder, "with spaces")
    with Server.start(place, binaries=any_binaries, shared=True) as server:
        assert ask(server, "select 1") == 1
        with Server.start(place, shared=True) as same:
            assert (same.pid, same.url()) == (server.pid, server.url())
        assert ask(server, "select 1") == 1


def test_only_the_socket_lets_in_without_a_password(binaries: Binaries, home: Path) -> None:
    with Server.start(
        home / "data", binaries=binaries, listen="127.0.0.1", settings={"log_statement": "all"}
    ) as server:
        assert server.data_dir.with_name("data.run").stat().st_mode & 0o777 == 0o700
        bare = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres passfile=/none"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(bare)
        url = server.url(tcp=True)
        with psycopg.connect(url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        password = urlsplit(url).password
        assert password
        assert password not in server.log.read_text()


def test_a_server_without_listen_has_no_tcp_url_and_a_shared_one_no_listen(
    any_binaries: Binaries, home: Path
) -> None:
    with pytest.raises(UsageError, match="listen: a shared server"):
        Server.start(home / "data", binaries=any_binaries, shared=True, listen="127.0.0.1")
    with Server.temporary(binaries=any_binaries) as server:
        with pytest.raises(UsageError, match="without listen"):
            server.url(tcp=True)
        with socket.socket() as stranger:
            assert stranger.connect_ex(("127.0.0.1", server.port)) != 0 or server.port == 5432


def test_a_database_name_is_quoted_in_the_url(any_binaries: Binaries) -> None:
    with Server.temporary(binaries=any_binaries) as server:
        do(server, 'create database "a b/c?d"')
        with psycopg.connect(server.url("a b/c?d")) as connection:
            assert connection.info.dbname == "a b/c?d"


def test_the_log_of_the_run_before_is_kept_once(any_binaries: Binaries, home: Path) -> None:
    with Server.start(home / "data", binaries=any_binaries) as server:
        server.crash()
        server.restart()
        before = server.log.with_name("server.log.1")
        assert "ready to accept connections" in before.read_text()
        assert "not properly shut down" in server.log.read_text()
