"""Under which account PostgreSQL runs. It refuses root, so root must step down.

No account is ever made and no folder of somebody else ever opened up.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sokka_pg.embedded.binaries import library_path
from sokka_pg.errors import DatabaseUnavailable, UsageError

UNPRIVILEGED = ("postgres", "nobody")
STEP_SECONDS = 300.0
"""Longest that one program (initdb, pg_basebackup, ...) may take."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account; ``dropped`` when root steps down to it for every child."""

    name: str
    uid: int
    gid: int
    dropped: bool

    def run(self, argv: Sequence[str | Path], input: str | None = None) -> str:
        """Run a program to its end as this account and give its standard output.

        Raises ``DatabaseUnavailable`` with the end of what it printed when it fails.
        """
        program = Path(argv[0]).name
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(
                [str(word) for word in argv], input=input or "", capture_output=True,
                text=True, errors="replace", timeout=STEP_SECONDS, **self.child_options(),
            )
        except subprocess.TimeoutExpired:
            raise DatabaseUnavailable(f"{program} took over {STEP_SECONDS:.0f} seconds") from None
        except OSError as error:
            raise DatabaseUnavailable(
                f"{program} could not be started as {self.name}: {error.strerror}"
            ) from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise DatabaseUnavailable(f"{program} failed ({done.returncode}): {said}")
        return done.stdout

    def can(self, argv: Sequence[str | Path]) -> bool:
        """True when the program runs as this account and reports success."""
        try:
            self.run(argv)
        except DatabaseUnavailable:
            return False
        return True

    def child_options(self) -> dict[str, Any]:
        """Options of ``subprocess`` for a child of this account.

        The environment starts empty: a LANG naming a missing locale stops
        initdb, PG* variables redirect pg_basebackup, root's HOME is unreadable.
        """
        options: dict[str, Any] = {
            "cwd": "/", "env": self._environment(), "umask": 0o077, "start_new_session": True,
        }
        if self.dropped:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return options

    def _environment(self) -> Mapping[str, str]:
        path = os.pathsep.join(filter(None, ["/usr/bin:/bin", os.environ.get("PATH")]))
        plain = {"PATH": path, "LC_ALL": "C", "HOME": "/"}
        return {**plain, **library_path()}


def is_root() -> bool:
    return os.geteuid() == 0


def own_account() -> Account:
    """The account of this process, which must not be root."""
    uid = os.geteuid()
    return Account(_name_of(uid), uid, os.getegid(), dropped=False)


def account_of(uid: int) -> Account:
    """The account that root steps down to because it owns the cluster."""
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = uid
    return _checked(Account(_name_of(uid), uid, gid, dropped=True))


def unprivileged_account() -> Account:
    """The account that root steps down to for a new cluster: postgres, else nobody."""
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return _checked(Account(name, entry.pw_uid, entry.pw_gid, dropped=True))
    raise UsageError("PostgreSQL refuses root and there is no account postgres or nobody here")


def _checked(account: Account) -> Account:
    if not account.can(["/bin/sh", "-c", ":"]):
        raise UsageError(
            f"PostgreSQL refuses root and this process may not become {account.name}; "
            "run it as an ordinary user"
        )
    return account


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
