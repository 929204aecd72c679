"""As an ordinary user; where the tests run as root, as nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sokka_pg.embedded import Binaries
from sokka_pg.embedded.account import account_of
from sokka_pg.embedded.cache import reachable
from tests.embedded.processes import ROOT, STEP_DOWN, nobody

PREAMBLE = STEP_DOWN if os.geteuid() == 0 else "import os, sys, psycopg\n"
COMMON = """
from pathlib import Path
from sokka_pg.embedded import Binaries, Server, dev_server, end_dev_server, running_url
from sokka_pg.errors import SokkaError
folder = Path(sys.argv[1])
binaries = Binaries(Path(sys.argv[2]), int(sys.argv[3]), "test")
"""


@pytest.fixture
def own_folder(open_folder: Path) -> Path:
    """A closed folder of the ordinary user."""
    folder = open_folder / "home of an ordinary user"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, nobody().pw_uid, nobody().pw_gid)
    return folder


def as_ordinary_user(code: str, folder: Path, binaries: Binaries) -> list[str]:
    """What the code prints when an ordinary user runs it."""
    if os.geteuid() == 0:
        programs = reachable(binaries, account_of(nobody().pw_uid))
    else:
        programs = binaries.bin_dir
    answer = subprocess.run(
        [sys.executable, "-c", PREAMBLE + COMMON + code, folder, programs, str(binaries.version)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LANG": "xx_YY.UTF-8", "HOME": "/root"},
        cwd="/", capture_output=True, text=True, timeout=300, check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_the_cluster_stands_where_the_user_says_and_outlives_its_server(
    binaries: Binaries, own_folder: Path
) -> None:
    code = """
for word in ("first", "second"):
    with Server.start(folder / "data", binaries=binaries) as server:
        print(os.geteuid() == 0, server.data_dir == folder / "data", server.version)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("create table if not exists kept (word text)")
            connection.execute("insert into kept values (%s)", (word,))
            print(connection.execute("select count(*) from kept").fetchone()[0])
"""
    where = f"False True {binaries.version}"
    assert as_ordinary_user(code, own_folder, binaries) == [where, "1", where, "2"]
    assert not (own_folder / "data").is_symlink()


def test_crash_kill_standby_promotion_and_rewind_work(
    binaries: Binaries, own_folder: Path
) -> None:
    code = """
with Server.start(folder / "data", binaries=binaries, listen="127.0.0.1") as server:
    server.crash(); server.restart(); server.kill(); server.restart()
    with server.base_backup(folder / "standby") as standby:
        server.kill()
        standby.promote()
        server.follow(standby)
        for url in (server.url(), server.url(tcp=True), standby.url()):
            with psycopg.connect(url) as connection:
                print(connection.execute("select pg_is_in_recovery()").fetchone()[0])
with Server.temporary(binaries=binaries) as server:
    gone = server.data_dir.parent
print(gone.exists())
"""
    assert as_ordinary_user(code, own_folder, binaries) == ["True", "True", "False", "False"]


def test_a_development_server_is_shared_kept_and_ended(
    any_binaries: Binaries, own_folder: Path
) -> None:
    code = """
os.environ["SOKKA_PG_BIN"] = sys.argv[2]
with dev_server(folder / "dev") as one, dev_server(folder / "dev") as two:
    print(one.pid == two.pid, running_url(folder / "dev") == one.url())
    two.keep()
print(running_url(folder / "dev") is not None, end_dev_server(folder / "dev"))
print(running_url(folder / "dev"), (folder / "dev" / ".gitignore").read_text().strip())
"""
    assert as_ordinary_user(code, own_folder, any_binaries) == [
        "True True", "True stopped", "None *",
    ]


def test_folders_of_others_are_refused_in_plain_words(
    any_binaries: Binaries, own_folder: Path
) -> None:
    (own_folder / "link").symlink_to("/proc/1/cwd/data")
    code = """
for name in ("/etc", "link", "/proc/absent/data"):
    try:
        Server.start(folder / name, binaries=binaries)
    except SokkaError as error:
        print(type(error).__name__, "belongs to another" in str(error),
              "of another account" in str(error), "cannot be made" in str(error))
"""
    assert as_ordinary_user(code, own_folder, any_binaries) == [
        "UsageError True False False", "UsageError False True False", "UsageError False False True",
    ]
