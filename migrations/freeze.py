"""Keep the newest revision's frozen SQL equal to sql/ until a release carries it.

    python migrations/freeze.py            copy what changed
    python migrations/freeze.py --check    fail if something would be copied,
                                           or a released revision has changed
    python migrations/freeze.py --release  seal all revisions: they never change again

The first revision holds all of sql/. A later one has a manifest of its own:
each file it names that sql/ has too is a copy of that one; the others (the
alter statements) are written by hand.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SQL = HERE.parent / "sql"
VERSIONS = HERE / "versions"
SEALS = HERE / "released"


def main(arguments: list[str]) -> int:
    broken = [name for name, seal in seals().items() if digest(VERSIONS / name) != seal]
    if broken:
        print(f"released revisions have changed: {', '.join(broken)}", file=sys.stderr)
        return 1
    newest = revision_folders()[-1].name
    if arguments == ["--release"]:
        SEALS.write_text("".join(f"{r.name} {digest(r)}\n" for r in revision_folders()))
        return 0
    if newest in seals():
        print(f"revision {newest} is released: make a new one", file=sys.stderr)
        return 0 if arguments == ["--check"] else 1
    changed = outdated(VERSIONS / newest)
    if arguments == ["--check"]:
        for path in changed:
            print(f"differs from sql/: {newest}/{path} (make freeze)", file=sys.stderr)
        return 1 if changed else 0
    for path in changed:
        copy(path, VERSIONS / newest)
    return 0


def revision_folders() -> list[Path]:
    scripts = VERSIONS.glob("[0-9]*_*.py")
    return sorted(VERSIONS / script.name.partition("_")[0] for script in scripts)


def seals() -> dict[str, str]:
    if not SEALS.is_file():
        return {}
    return dict(line.split() for line in SEALS.read_text().splitlines())


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.update(f"{file.relative_to(folder).as_posix()}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()


def listed(folder: Path) -> set[Path]:
    """The files that a folder's manifest names."""
    lines = (folder / "manifest").read_text().splitlines()
    return {Path(name) for line in lines if (name := line.partition("#")[0].strip())}


def outdated(folder: Path) -> list[Path]:
    """What freezing would write or remove, relative to the folder."""
    if folder == revision_folders()[0]:
        wanted = {Path("manifest"), *listed(SQL)}
        frozen = {f.relative_to(folder) for f in folder.rglob("*") if f.is_file()}
    else:
        wanted = {path for path in listed(folder) if (SQL / path).is_file()}
        frozen = set()
    stale = {
        path
        for path in wanted
        if not (folder / path).is_file()
        or (folder / path).read_bytes() != (SQL / path).read_bytes()
    }
    return sorted(stale | (frozen - wanted))


def copy(path: Path, folder: Path) -> None:
    if not (SQL / path).is_file():
        (folder / path).unlink()
        return
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SQL / path, folder / path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
