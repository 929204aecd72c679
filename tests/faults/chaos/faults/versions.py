"""F16: a release that is one revision behind, the migration in the middle, both at work.

The release is taken from the history of this repository: the newest commit that is known to
have carried the revision before the newest as it was sealed. That is the commit that sealed
it, unless the next revision had begun by then; otherwise the one that gave it its last form.
A later one will not do: its code may already use what the next revision brings.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from sokka_pg import schema
from tests.faults.chaos.faults import CrewMember, Role, Scene, Way
from tests.faults.chaos.faults.counting import belongs, injections
from tests.faults.chaos.faults.firing import in_thread, injected
from tests.faults.chaos.words import FAIL, OK, Act, Bite, Call, Injection

ROOT = Path(__file__).parents[4]
SCRIPTS = "migrations/versions"
SEALS = "migrations/released"
PARTS = ("sokka_pg", "sql", "migrations", "pyproject.toml")
"""What of the release runs. Its tests stay away: those of the checkout are used."""
STAYS, GOES = "old", "upgraded"
STOP_S = 20.0
STEP_S = 120.0
PRODUCER = "producer"
# What a schema that moved under a program would raise: no such column or function, a plan
# or a result of another type, an argument that is not understood, an internal error, a
# column that half of the functions do not know to fill.
BROKEN = ("42", "0A", "XX", "22", "23502")

_WHERE = "import sokka_pg; print(sokka_pg.__file__)"
_MIGRATE = "import sys; from sokka_pg.migrate import upgrade; upgrade(sys.argv[1])"


@dataclass
class Release:
    """The code of a commit, to be run beside this one."""

    root: Path
    commit: str
    revision: str
    newest: str
    folder: Path | None = None

    def extract(self, folder: Path) -> None:
        """Unpack it, and make sure that it is what a program finds there."""
        packed = _git(self.root, "archive", "--format=tar", self.commit, "--", *PARTS)
        folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            # Python has filters from 3.11.4 on; this archive is our own.
            archive.extractall(
                folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
            )
        self.folder = folder.resolve()
        found = Path(self.run(_WHERE).strip())
        if not found.is_relative_to(self.folder):
            raise RuntimeError(f"the old release is hidden by {found}")

    def environment(self) -> dict[str, str]:
        """For its processes. The installed package and the working folder must not win."""
        assert self.folder is not None, "extract it first"
        return {
            "PYTHONPATH": os.pathsep.join((str(self.folder), str(ROOT))), "PYTHONSAFEPATH": "1",
        }

    def migrate(self, url: str) -> None:
        """Install its own schema, by its own code."""
        self.run(_MIGRATE, url)

    def run(self, program: str, *arguments: str) -> str:
        return _python(program, *arguments, **self.environment())


def previous_release(root: Path) -> Release | str:
    """The release before the newest revision, or why there is none to be had."""
    scripts = sorted(file.name for file in (root / SCRIPTS).glob("[0-9]*_*.py"))
    if len(scripts) < 2:
        return "there is no revision before the newest"
    newest, before = scripts[-1], scripts[-2].partition("_")[0]
    try:
        if _line(root, "rev-parse", "--is-shallow-repository") != "false":
            return "the history of this repository is cut off (a shallow clone)"
        last = _last_without(root, f"{SCRIPTS}/{newest}")
        commit = _sealed(root, before, newest) or _finished(root, before, last)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no history of this repository: {_said(error)}"
    if commit is None:
        return f"no commit has revision {before} as it was sealed"
    return Release(root, commit, before, newest.partition("_")[0])


def _last_without(root: Path, script: str) -> str:
    added = _lines(root, "log", "--diff-filter=A", "--format=%H", "--", script)
    return f"{added[-1]}^" if added else "HEAD"


def _sealed(root: Path, revision: str, newest: str) -> str | None:
    """The commit that sealed it, if the newest revision had not begun by then."""
    found = _lines(
        root, "log", "--reverse", "--format=%H", f"-G^{revision} [0-9a-f]+$", "--", SEALS
    )
    if not found or _lines(root, "ls-tree", "--name-only", found[0], f"{SCRIPTS}/{newest}"):
        return None
    return found[0]


def _finished(root: Path, revision: str, last: str) -> str | None:
    """The last commit that touched it, and left it as it is now."""
    folder = f"{SCRIPTS}/{revision}"
    wanted = _line(root, "rev-parse", f"HEAD:{folder}")
    for commit in _lines(root, "log", "--format=%H", last, "--", folder):
        if _line(root, "rev-parse", f"{commit}:{folder}") == wanted:
            return commit
    return None


class Deployed(CrewMember, Protocol):
    def ask_to_stop(self) -> None: ...

    def wait(self, seconds: float) -> bool: ...


class Migrated(Scene, Protocol):
    release: Release

    def migrated(self) -> None:
        """The witness and the rights of roles, for what came with the migration."""


class MixedVersions:
    """Old workers all, the migration, then half of them new."""

    name = "F16"
    roles: tuple[Role, ...] = ()
    variants = (STAYS, GOES)

    def __init__(self) -> None:
        self._surroundings: list[dict[str, str]] = []

    def possible(self, scene: Scene | None) -> str | None:
        found = previous_release(schema.migrations_root().parent)
        if isinstance(found, str):
            return found
        if scene is not None and getattr(scene, "release", None) is None:
            return "this ground has the newest schema"
        return None

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        surroundings = cast(Migrated, scene).release.environment()
        if variant == GOES:
            self._surroundings.append(surroundings)
        return Way(variant, scene.url, environment=surroundings)

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        ground = cast(Migrated, scene)
        await asyncio.sleep(max(0.0, until - time.monotonic()) * dice.uniform(0.3, 0.45))
        release = ground.release
        told = {"commit": release.commit, "from": release.revision, "to": release.newest}
        with injected(scene, self.name, "the schema", **told):
            await in_thread(migrate, scene.url())
            await in_thread(ground.migrated)
        # Whoever starts from now on in such a place is new.
        for surroundings in self._surroundings:
            surroundings.update({"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": ""})
        for worker in [each for each in scene.crew.workers if each.variant == GOES]:
            await in_thread(_upgrade, scene, worker)

    def bites(self, act: Act) -> Bite:
        shots = injections(act, self.name)
        migration = next((shot for shot in shots if shot.about == "the schema"), None)
        if migration is None or migration.ended is None:
            return Bite(self.name, 0, "the schema was not migrated")
        old, new = Counter[str](), Counter[str]()
        for call in _after(act, migration):
            if call.outcome == OK and call.rows:
                (old if _is_old(call, shots) else new)[call.function] += 1
        took = (migration.ended - migration.began) / 1e9
        return Bite(
            self.name, min(old.total(), new.total()),
            f"migrated under traffic in {took:.1f} s; after it {old.total()} calls of the old "
            f"release and {new.total()} of the new one were answered with rows",
        )

    async def close(self) -> None:
        """Nothing of its own is up."""


def new_errors(act: Act) -> dict[str, int]:
    """What processes of the old release were told only after the migration, and that a
    program is told of a schema that it does not fit: by SQLSTATE, how often."""
    shots = injections(act, MixedVersions.name)
    migration = next((shot for shot in shots if shot.about == "the schema"), None)
    if migration is None:
        return {}
    before = {call.sqlstate for call in act.calls if call.began < migration.began}
    return dict(Counter(
        call.sqlstate for call in _after(act, migration)
        if call.outcome == FAIL and call.sqlstate.startswith(BROKEN)
        and call.sqlstate not in before and _is_old(call, shots)
    ))  # fmt: skip


def _after(act: Act, migration: Injection) -> Iterator[Call]:
    return (call for call in act.calls if call.began >= migration.began)


def _is_old(call: Call, shots: Iterable[Injection]) -> bool:
    """Of a producer or a worker, by the places that were upgraded and when. Operators are
    part of the run itself, and thus new."""
    if call.process.startswith(PRODUCER):
        return True
    if not call.pid:
        return False
    gone = next((shot for shot in shots if belongs(call.pid, shot.about)), None)
    return gone is None or call.began < gone.began


def _upgrade(scene: Scene, worker: CrewMember) -> None:
    """As a deployment does: asked to stop, waited for, started from the new code."""
    deployed = cast(Deployed, worker)
    seat = worker.name.partition(".")[0]
    with injected(scene, MixedVersions.name, seat):
        deployed.ask_to_stop()
        if not deployed.wait(STOP_S):
            deployed.kill()
        deployed.restart()


def migrate(url: str) -> None:
    """``sokka migrate`` of this code, as an operator runs it."""
    _python(_MIGRATE, url, PYTHONPATH=str(ROOT))


def _python(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, timeout=STEP_S,
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-1000:])
    return done.stdout


def _git(root: Path, *words: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, check=True, timeout=STEP_S
    ).stdout


def _lines(root: Path, *words: str) -> list[str]:
    return _git(root, *words).decode().split("\n")[:-1]


def _line(root: Path, *words: str) -> str:
    return _git(root, *words).decode().strip()


def _said(error: Exception) -> str:
    printed: Any = getattr(error, "stderr", None)
    return (printed.decode(errors="replace").strip() if printed else "") or str(error)
