"""The mark of a shared server that stays up although nobody uses it.

It names one run of one server, so it means nothing after a crash or a reboot.
"""

from __future__ import annotations

import os
from pathlib import Path

from sokka_pg.embedded import cluster
from sokka_pg.embedded.place import Place


def keep(place: Place) -> None:
    """Mark the server that runs now."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(_path(place), flags, 0o600)
    try:
        if place.account.dropped:
            os.fchown(descriptor, place.account.uid, place.account.gid)
        os.write(descriptor, _this_run(place).encode())
    finally:
        os.close(descriptor)


def is_kept(place: Place) -> bool:
    """True when the server that runs now is the one that was marked."""
    try:
        descriptor = os.open(_path(place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        text = os.read(descriptor, 200).decode(errors="replace")
    finally:
        os.close(descriptor)
    return bool(text) and text == _this_run(place)


def release(place: Place) -> None:
    """Take the mark away."""
    _path(place).unlink(missing_ok=True)


def _path(place: Place) -> Path:
    return place.run_dir / "kept"


def _this_run(place: Place) -> str:
    found = cluster.record(place.data_dir)
    return f"{found.pid} {found.started}" if found else ""
