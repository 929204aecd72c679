"""Where the demo runs: a temporary server, one that is kept, or a named database."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from sokka_pg import settings
from sokka_pg.embedded import Server, dev_server
from sokka_pg.errors import UsageError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Host:
    """A database for one run, and what was kept of it."""

    url: str
    topic: str
    embedded: bool
    folder: Path
    kept: bool = False
    leftovers: list[Path] = field(default_factory=list)
    """What to remove one day, where the server is kept."""


@contextmanager
def host(database_url: str | None, keep: bool) -> Iterator[Host]:
    """A database for the block. The embedded server stops at its end and its files
    go, unless the block sets ``kept``."""
    with _folder() as (folder, keep_folder):
        if database_url is not None:
            url = settings.normalise(database_url, "--database-url")
            yield Host(url, f"demo-{secrets.token_hex(4)}", False, folder)
            return
        server = dev_server(folder) if keep else Server.temporary()
        found = Host(server.url(), "demo", True, folder)
        cluster = server.data_dir.parent
        found.leftovers = list(dict.fromkeys((folder, cluster))) if keep else []
        try:
            yield found
            if found.kept:
                server.keep()
                keep_folder()
        finally:
            # What is thrown away needs no checkpoint.
            server.stop("fast" if found.kept else "immediate")
            if keep and not found.kept:
                shutil.rmtree(cluster, ignore_errors=True)


@contextmanager
def _folder() -> Iterator[tuple[Path, Callable[[], None]]]:
    """A private temporary folder, and how to say that it is to stay."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="sokka-demo-")).resolve()
    except OSError as error:
        raise UsageError(f"no temporary folder can be made ({error.strerror})") from error
    staying: list[bool] = []
    try:
        yield folder, lambda: staying.append(True)
    finally:
        if not staying:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Let SIGTERM and SIGHUP raise like Ctrl-C does, so that what was started is
    ended. Gives a function after which they, and Ctrl-C, are ignored until the end
    of the block: the cleaning up is bounded, and half of it would leave a server.
    For the main thread: Python lets no other have signals."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def ignore() -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if before[number] is signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _exit)
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
