"""Who uses a cluster: told by flock, which the kernel drops with its process.

Two locks stand in the run folder. ``turn``: whoever starts or stops the server
holds it, for as long as that takes. ``users``: held shared by every process
that uses a shared server, exclusively by the one process of a private server.
The last one out is the one that gets ``users`` exclusively.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sokka_pg.embedded.account import Account
from sokka_pg.errors import DatabaseUnavailable, UsageError

TURN_SECONDS = 120.0
"""Longest wait for another process that is starting or stopping the server."""


@contextmanager
def folder_turn(folder: Path) -> Iterator[None]:
    """Be alone with the pointers of this folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with _exclusively(descriptor, folder):
        yield


@contextmanager
def turn(run_dir: Path, account: Account) -> Iterator[None]:
    """Be the only one to start or stop this server."""
    path = run_dir / "turn"
    with _exclusively(_open(path, account), path):
        yield


@contextmanager
def _exclusively(descriptor: int, path: Path) -> Iterator[None]:
    try:
        deadline = time.monotonic() + TURN_SECONDS
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"another process has held {path} for {TURN_SECONDS:.0f} seconds"
                )
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


class Membership:
    """This process's hold on the lock ``users``. Take and leave it in one's turn."""

    def __init__(self, run_dir: Path, account: Account, *, shared: bool) -> None:
        self._path = run_dir / "users"
        self._account = account
        self._descriptor = _open(self._path, account)
        if not _locked(self._descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            self.leave()
            raise UsageError(
                f"another process runs a private server in {run_dir}" if shared
                else f"other processes use the server in {run_dir}"
            )

    def leave(self) -> bool:
        """Let go; true when nobody is left. A second call does nothing."""
        if self._descriptor < 0:
            return False
        # Closed, not unlocked: a forked child's copy goes on holding the lock.
        os.close(self._descriptor)
        self._descriptor = -1
        return not in_use(self._path.parent, self._account)


def in_use(run_dir: Path, account: Account) -> bool:
    """True while any process holds the lock ``users``."""
    descriptor = _open(run_dir / "users", account)
    try:
        return not _locked(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path, account: Account) -> int:
    # No link is followed: root opens this in a folder of an ordinary account.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except PermissionError:
        raise UsageError(f"{path} belongs to another account") from None
    if account.dropped:
        os.fchown(descriptor, account.uid, account.gid)
    return descriptor
