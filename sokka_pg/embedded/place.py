"""Where a cluster stands, and under which account.

Beside the data folder ``x`` stands ``x.run`` (locks, log, socket). An ordinary
user's cluster is where the user says. Root's stands in a private folder below
/var/tmp, owned by the account that root steps down to, because a clone or a
home may be closed to everyone else; ``x`` is then a symbolic link to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sokka_pg.embedded import sharing
from sokka_pg.embedded.account import (
    Account,
    account_of,
    is_root,
    own_account,
    unprivileged_account,
)
from sokka_pg.errors import UsageError

PRIVATE_ROOT = Path("/var/tmp")  # noqa: S108  owner and mode are checked below
SHORT_ROOT = Path("/tmp")  # noqa: S108  likewise
SOCKET_PATH_BYTES = 103  # macOS; Linux takes four more
SPARE_NAMES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A data folder (real path) and the account that owns it."""

    data_dir: Path
    account: Account
    own_folder: Path | None = None
    pointer: Path | None = None

    @property
    def run_dir(self) -> Path:
        """Locks, log and (mostly) the socket: private to the account."""
        return self.data_dir.with_name(self.data_dir.name + ".run")

    @property
    def log(self) -> Path:
        return self.run_dir / "server.log"

    def prepare(self) -> None:
        """Make the folder beside the data, and check that the account gets there."""
        make_private(self.run_dir, self.account)
        inside = self.data_dir if self.data_dir.exists() else self.run_dir
        if not self.account.can(["/bin/sh", "-c", 'cd "$1"', "sh", inside]):
            raise UsageError(f"account {self.account.name} cannot reach the folder {inside}")

    def remove(self) -> None:
        """Delete the cluster and all that stands beside it. The server must be down."""
        whole = [self.own_folder] if self.own_folder else [self.data_dir, self.run_dir]
        self.account.can(["rm", "-rf", *whole])
        if self.pointer is not None and self.pointer.is_symlink():
            self.pointer.unlink()


def locate(data_dir: Path, account: Account | None = None) -> Place:
    """Follow or make the pointer to a cluster; the cluster itself may not exist yet.

    ``account`` is the one that root steps down to for a new cluster. Raises
    ``UsageError`` for a cluster of root, of another account, or a folder that
    holds something else.
    """
    path = data_dir.expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {path.parent} cannot be made: {error.strerror}") from error
    with sharing.folder_turn(path.parent):
        place = _roots_place(path, account) if is_root() else _users_place(path)
    if place.data_dir.is_dir():
        _refuse_other_contents(place.data_dir)
    return place


def disposable_place(account: Account | None = None) -> Place:
    """A place that nothing points at, for a cluster that is soon removed."""
    if is_root():
        return _new_place(account or unprivileged_account(), pointer=None)
    folder = Path(tempfile.mkdtemp(prefix="sokka-")).resolve()
    return Place(folder / "data", own_account(), own_folder=folder)


def _users_place(path: Path) -> Place:
    try:
        real, account = path.resolve(), own_account()
        if real.exists() and real.stat().st_uid != account.uid:
            raise UsageError(f"{path} belongs to another account; PostgreSQL would refuse it")
    except PermissionError:
        raise UsageError(f"{path} leads to a cluster of another account (root's?)") from None
    return Place(real, account)


def _roots_place(path: Path, account: Account | None) -> Place:
    real = path.resolve()
    if real.exists():
        owner = real.stat().st_uid
        if owner != 0:
            return _pointed_at(path, real, owner)
        if path.is_symlink() or any(real.iterdir()):
            raise UsageError(
                f"{path} belongs to root, and PostgreSQL refuses root: "
                "give it to an ordinary account (chown -R), or name another folder"
            )
        path.rmdir()
    elif path.is_symlink() and real.parent.exists():
        return _pointed_at(path, real, real.parent.stat().st_uid)
    place = _new_place(account or unprivileged_account(), pointer=path)
    path.unlink(missing_ok=True)
    path.symlink_to(place.data_dir)
    return place


def _pointed_at(path: Path, real: Path, owner: int) -> Place:
    account = account_of(owner)
    ours = path.is_symlink() and real.parent.parent.parent == PRIVATE_ROOT
    return Place(real, account, real.parent, path) if ours else Place(real, account)


def _refuse_other_contents(data_dir: Path) -> None:
    if not os.access(data_dir, os.R_OK | os.X_OK):
        raise UsageError(f"{data_dir} cannot be read by this account")
    if any(data_dir.iterdir()) and not (data_dir / "PG_VERSION").is_file():
        raise UsageError(f"{data_dir} holds files but no PostgreSQL cluster; name another folder")


def private_home(account: Account) -> Path:
    """The folder below /var/tmp for everything that root keeps for an account."""
    return _first_private(PRIVATE_ROOT / f"sokka-{account.name}", account)


def _new_place(account: Account, pointer: Path | None) -> Place:
    folder = private_home(account) / secrets.token_hex(4)
    make_private(folder, account)
    return Place(folder / "data", account, folder, pointer)


def make_private(folder: Path, account: Account) -> None:
    """Make a folder, mode 0700, owned by the account, unless it stands already."""
    if folder.is_dir():
        return
    made = account.can(["mkdir", "-m", "700", folder])
    if not made and account.dropped and not folder.exists():
        folder.mkdir(mode=0o700)
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    if not folder.is_dir():
        raise UsageError(f"account {account.name} cannot make the folder {folder}")


def _first_private(base: Path, account: Account) -> Path:
    """``base``, or the first numbered one where a stranger took the name before us."""
    for number in range(SPARE_NAMES):
        folder = base.with_name(f"{base.name}-{number}") if number else base
        if not os.path.lexists(folder):
            account.can(["mkdir", "-m", "700", folder])
        if _is_private(folder, account):
            return folder
    raise UsageError(f"no folder like {base} is, or can be made, private to {account.name}")


def _is_private(folder: Path, account: Account) -> bool:
    try:
        facts = folder.lstat()
    except OSError:
        return False
    mine = facts.st_uid == account.uid and stat.S_ISDIR(facts.st_mode)
    return mine and not facts.st_mode & 0o077


def socket_folder(place: Place) -> Path:
    """``run_dir`` where a socket works there, else a short private folder.

    PostgreSQL splits this setting at commas and drops quotes, the kernel
    bounds its length, and some file systems hold no sockets.
    """
    if _fits(place.run_dir) and _holds_sockets(place.run_dir):
        return place.run_dir
    return _first_private(_short_folder(place), place.account)


def drop_socket_folder(folder: Path, place: Place) -> None:
    """Remove the short folder of a server that is down, if it had one."""
    if folder != place.run_dir:
        with contextlib.suppress(OSError):
            folder.rmdir()


def is_our_socket_folder(folder: Path, place: Place) -> bool:
    """True when a server of this launcher listens there, not somebody else's."""
    if folder == place.run_dir:
        return True
    short = _short_folder(place)
    return str(folder).startswith(str(short)) and _is_private(folder, place.account)


def _short_folder(place: Place) -> Path:
    digest = hashlib.sha256(os.fsencode(place.data_dir)).hexdigest()[:10]
    return SHORT_ROOT / f"skpg-{place.account.uid}-{digest}"


def _fits(folder: Path) -> bool:
    longest = os.fsencode(folder / ".s.PGSQL.65535")
    plain = re.fullmatch(r"[A-Za-z0-9_./-]+", str(folder)) is not None
    return plain and len(longest) <= SOCKET_PATH_BYTES


def _holds_sockets(folder: Path) -> bool:
    probe = folder / f"probe{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(probe))
        except OSError:
            return False
        probe.unlink()
    return True
