"""The server of a development folder: shared by every command run there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

from sokka_pg.embedded import cluster, kept, sharing
from sokka_pg.embedded.place import drop_socket_folder, locate
from sokka_pg.embedded.postmaster import Postmaster
from sokka_pg.embedded.server import Server
from sokka_pg.errors import UsageError

DEFAULT_FOLDER = Path(".sokka")

Ending = Literal["stopped", "not running", "in use"]


def dev_server(folder: Path = DEFAULT_FOLDER) -> Server:
    """Join or start the server of this folder, shared with every other process.

    Stop it, or exit, to leave; the last one out stops the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError, PermissionError), (folder / ".gitignore").open(
        "x"
    ) as file:
        file.write("*\n")
    return Server.start(folder / "data", shared=True)


def end_dev_server(folder: Path = DEFAULT_FOLDER, *, force: bool = False) -> Ending:
    """Stop the server of this folder, kept up or not.

    ``in use``: other processes are connected to its life; without ``force``
    it goes on, and stops when the last of them leaves.
    """
    if not _stands(folder):
        return "not running"
    place = locate(folder / "data")
    place.prepare()
    with sharing.turn(place.run_dir, place.account):
        kept.release(place)
        found = cluster.record(place.data_dir)
        if found is None or not found.listening():
            return "not running"
        if sharing.in_use(place.run_dir, place.account) and not force:
            return "in use"
        Postmaster(found.pid).stop("fast")
        drop_socket_folder(found.socket_dir, place)
        return "stopped"


def running_url(folder: Path = DEFAULT_FOLDER, database: str = "postgres") -> str | None:
    """The URL of this folder's server without joining it; None while it is down."""
    if not _stands(folder):
        return None
    found = cluster.record((folder / "data").resolve())
    if found is None or not found.listening():
        return None
    return cluster.url(found.socket_dir, found.port, database)


def _stands(folder: Path) -> bool:
    try:
        return (folder / "data").exists()
    except PermissionError:
        raise UsageError(f"{folder} leads to a cluster of another account (root's?)") from None
