"""Which files: the source of the standard library of the running interpreter."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sokka_pg.errors import UsageError

ENOUGH = 1_000
"""A standard library with fewer files (some systems leave its tests out) is
helped out by site-packages."""
FEWEST = 12
CLASSES = 10

_OTHERS = {"site-packages", "dist-packages", "__pycache__"}
_OURS = "sokka_pg"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to work on. ``name`` is its path below the library's root."""

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The files, the largest first, and where they come from."""

    files: list[SourceFile]
    origin: str

    def priorities(self) -> Iterator[tuple[SourceFile, int]]:
        """Each file with the priority of its task: the largest first, so that no
        worker is left alone with a big one at the end. Each class is a tenth of the
        work, so what is taken back from a lost worker soon has its turn again."""
        total, before = sum(file.size for file in self.files) or 1, 0
        for file in self.files:
            yield file, min(before * CLASSES // total, CLASSES - 1)
            before += file.size


def find(most: int | None = None) -> Sources:
    """The files of this interpreter, or ``most`` of them, evenly chosen.

    Raises ``UsageError`` where there are too few to show anything.
    """
    paths = sysconfig.get_paths()
    files = _below(Path(paths["stdlib"]), "stdlib", _OTHERS)
    origin = "the standard library"
    if len(files) < ENOUGH:
        # the environment's own, and the interpreter's where that is another
        for folder in dict.fromkeys((paths["purelib"], paths["platlib"])):
            files += _below(Path(folder), "site-packages", {"__pycache__", _OURS})
        origin += " and site-packages"
    if len(files) < FEWEST:
        raise UsageError(
            f"the demo needs {FEWEST} source files or more; this interpreter's library "
            f"({paths['stdlib']}) has {len(files)}"
        )
    files.sort(key=lambda file: (-file.size, file.name))
    return Sources(files if most is None else _spread(files, most), origin)


def _below(root: Path, label: str, left_out: set[str]) -> list[SourceFile]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - left_out)
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file() and _is_text(path):
                below = path.relative_to(root).as_posix()
                found.append(SourceFile(f"{label}/{below}", str(path), path.stat().st_size))
    return found


def _is_text(path: Path) -> bool:
    """Whether a payload can hold the name: JSON text is Unicode without surrogates."""
    return str(path).isascii() or not any("\ud800" <= char <= "\udfff" for char in str(path))


def _spread(files: list[SourceFile], most: int) -> list[SourceFile]:
    if most >= len(files):
        return files
    return [files[position * len(files) // most] for position in range(most)]
