"""F16: which release is the one before, and that it goes on over a migration."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sokka_pg import migrate
from tests.faults.chaos import keeping, recorder
from tests.faults.chaos.faults import CrewMember, Way, versions
from tests.faults.chaos.words import FAIL, OK, Act, Call, Injection
from tests.faults.waiting import until

Commit = Callable[..., str]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet")
    return root


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(root: Path, **files: str) -> str:
    """Files by their path in migrations/ with ``/`` as ``__`` and ``.`` as ``_dot_``."""
    for name, text in files.items():
        file = root / "migrations" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "x")
    return git(root, "rev-parse", "HEAD")


def first_revision(root: Path) -> str:
    commit(root, versions__0001_queue_dot_py="", versions__0001__a_dot_sql="draft")
    return commit(root, versions__0001__a_dot_sql="final")


def test_a_revision_that_was_sealed_with_the_next_is_taken_as_it_got_its_last_form(
    history: Path,
) -> None:
    finished = first_revision(history)
    commit(history, versions__0001__a_dot_sql="begins the next")
    commit(
        history, versions__0001__a_dot_sql="final", versions__0002_joins_dot_py="",
        versions__0002__a_dot_sql="", released="0001 ab12\n",
    )
    found = versions.previous_release(history)
    assert isinstance(found, versions.Release)
    assert (found.commit, found.revision, found.newest) == (finished, "0001", "0002")


def test_a_revision_that_was_sealed_by_itself_is_taken_as_it_was_released(history: Path) -> None:
    first_revision(history)
    commit(history, versions__0002_joins_dot_py="", versions__0002__a_dot_sql="")
    commit(history, versions__0002__a_dot_sql="final")
    commit(history, readme="mended after the last change of the schema")
    sealed = commit(history, released="0001 ab12\n0002 cd34\n")
    commit(history, readme="ahead of its schema")
    (history / "migrations/versions/0003_more.py").write_text("")  # not even committed
    found = versions.previous_release(history)
    assert isinstance(found, versions.Release)
    assert (found.commit, found.revision, found.newest) == (sealed, "0002", "0003")


def test_without_a_history_there_is_a_reason(history: Path, tmp_path: Path) -> None:
    assert versions.previous_release(tmp_path) == "there is no revision before the newest"
    first_revision(history)
    commit(history, versions__0002_joins_dot_py="")
    git(tmp_path, "clone", "--quiet", "--depth", "1", history.as_uri(), str(tmp_path / "cut"))
    assert "shallow" in str(versions.previous_release(tmp_path / "cut"))
    shutil.copytree(history / "migrations", tmp_path / "unpacked" / "migrations")
    assert "no history of this repository" in str(
        versions.previous_release(tmp_path / "unpacked")
    )


class Member:
    """A worker process of some release."""

    def __init__(self, name: str, way: Way, folder: Path) -> None:
        self.seat, self.variant, self.starts = name, way.variant, 0
        self._way, self._folder = way, folder
        self.restart()

    @property
    def name(self) -> str:
        return f"{self.seat}.{self.starts}"

    def restart(self) -> None:
        self.starts += 1
        self.log = self._folder / f"{self.name}.log"
        self.process = spawn(
            [sys.executable, "-m", "tests.faults.chaos.command", "worker", "--app",
             "tests.faults.handlers:app", "--topics", "t:4", "--lease", "1s", "--pid", self.name],
            self.log, self._way.url(""), self.name, self._folder, self._way.environment,
        )

    def ask_to_stop(self) -> None:
        self.process.terminate()

    def wait(self, seconds: float) -> bool:
        return self.process.wait(seconds) is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)


def spawn(
    command: list[str], log: Path, url: str, name: str, folder: Path, more: Any
) -> subprocess.Popen[bytes]:
    surroundings = {
        **os.environ, "SOKKA_DATABASE_URL": url, recorder.FOLDER: str(folder),
        recorder.NAME: name.partition(".")[0], recorder.PID: name, **more,
    }
    with log.open("wb") as out:
        return subprocess.Popen(
            command, cwd=versions.ROOT, env=surroundings, stdout=out, stderr=out,
            start_new_session=True,
        )


class Ground:
    """As much of a scene as the migration asks for."""

    def __init__(self, release: versions.Release, url: str) -> None:
        self.release, self.crew = release, self
        self.workers: list[CrewMember] = []
        self.injections: list[Injection] = []
        self.told = 0
        self._url = url

    def url(self, role: str | None = None) -> str:
        return self._url

    def log(self, injection: Injection) -> None:
        self.injections.append(injection)

    def migrated(self) -> None:
        self.told += 1


@pytest.mark.long
async def test_the_old_release_goes_on_over_the_migration_and_the_new_one_joins_it(
    empty_db: str, tmp_path: Path
) -> None:
    release = versions.previous_release(versions.ROOT)
    assert isinstance(release, versions.Release), release
    release.extract(tmp_path / "release")
    release.migrate(empty_db)
    assert migrate.current(empty_db) == release.revision
    made, fault = Ground(release, empty_db), versions.MixedVersions()
    assert fault.possible(made) is None  # type: ignore[arg-type]
    began, records = time.monotonic_ns(), tmp_path / "history"
    records.mkdir()
    with ExitStack() as stack:
        for name, variant in (("w1", versions.STAYS), ("w2", versions.GOES)):
            member = Member(name, await fault.way(made, variant, name), records)  # type: ignore[arg-type]
            stack.callback(member.kill)
            made.workers.append(member)  # type: ignore[arg-type]
            until(lambda m=member: " serves " in m.log.read_text(), "a start")
        producer = spawn(
            [sys.executable, "-m", "tests.faults.old_producer"], tmp_path / "producer.log",
            empty_db, "producer", records, release.environment(),
        )
        stack.callback(producer.wait, 20)
        stack.callback(producer.kill)
        await fault.run(made, random.Random(1), time.monotonic() + 3)  # type: ignore[arg-type]
        assert migrate.current(empty_db) == release.newest
        until(lambda: " serves " in made.workers[1].log.read_text(), "the new one")  # type: ignore[attr-defined]
        await asyncio.sleep(1.5)
        assert producer.poll() is None, (tmp_path / "producer.log").read_text()
        assert all(each.process.poll() is None for each in made.workers)  # type: ignore[attr-defined]
    calls, transactions = keeping.read_history(records)
    act = Act(
        "mixed", 0, 1, began, time.monotonic_ns(), 0, calls, transactions,
        injections=made.injections,
    )
    assert versions.new_errors(act) == {}
    bite = fault.bites(act)
    print(bite.evidence)
    assert bite.count > 10, bite
    assert {shot.about for shot in made.injections} == {"the schema", "w2"} and made.told == 1
    check_both_worked(empty_db, act)


def test_an_error_that_old_processes_meet_only_after_the_migration_is_told() -> None:
    def failed(n: int, at: int, sqlstate: str, process: str = "producer-1") -> Call:
        return Call(process, n, "create_task", {}, at, at + 1, FAIL, sqlstate=sqlstate)

    act = Act("mixed", 0, 1, 0, 99, 0)
    act.injections = [Injection("F16", 10, 20, "the schema", {"from": "0002", "to": "0003"})]
    act.calls = [
        failed(1, 5, "42703"), failed(2, 30, "42703"), failed(3, 30, "SK012"),
        failed(4, 12, "23502"), failed(5, 31, "42883", "operator-1"),
    ]
    assert versions.new_errors(act) == {"23502": 1}


def check_both_worked(url: str, act: Act) -> None:
    """The one that stayed, and both lives of the other, each ended tasks."""
    with psycopg.connect(url, autocommit=True) as asking:
        ended = dict(asking.execute(
            "select pid, count(*) from sokka.finished_tasks where status = 'terminated' group by 1"
        ).fetchall())
    print(ended)
    assert set(ended) == {"w1.1", "w2.1", "w2.2"}
    answered = [call for call in act.calls if call.function == "create_task" and call.outcome == OK]
    assert len(answered) > 20
    assert not [call for call in act.calls if call.sqlstate.startswith("42")]
