"""A PostgreSQL server that a process starts for itself or shares with others."""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from sokka_pg.embedded import cluster, kept, sharing, standby
from sokka_pg.embedded.binaries import Binaries, all_binaries, find_binaries
from sokka_pg.embedded.cache import reachable
from sokka_pg.embedded.place import (
    Place,
    disposable_place,
    drop_socket_folder,
    is_our_socket_folder,
    locate,
    socket_folder,
)
from sokka_pg.embedded.postmaster import Mode, Postmaster
from sokka_pg.embedded.readiness import connect, set_password, wait_until_ready
from sokka_pg.errors import DatabaseUnavailable, UsageError

ATTEMPTS = 20
APPEARING_SECONDS = 10.0
# Both pass by themselves: backends of a killed server that are still leaving,
# and a port that somebody took between our look and PostgreSQL's.
PASSING_TROUBLES = ("pre-existing shared memory block", "Address already in use")


class Server:
    """A running PostgreSQL with its cluster; a context manager that stops it.

    Made by ``start`` or ``temporary``. The server listens on a Unix socket that
    only its account and root can reach, and asks no password there; fsync
    stays on. A private server (the default) is a direct child and ends with
    this process, however that ends. A shared one outlives its starter and is
    stopped by the last process that leaves it.
    """

    def __init__(
        self, place: Place, binaries: Binaries, settings: Mapping[str, str],
        membership: sharing.Membership, *, shared: bool, listen: str | None,
    ) -> None:
        self._place = place
        self._binaries = binaries
        self._programs = reachable(binaries, place.account)
        self._settings = dict(settings)
        self._membership = membership
        self._shared = shared
        self._listen = listen
        self._port = cluster.SOCKET_PORT if listen is None else 0
        self._password: str | None = None
        self._socket_dir = place.run_dir
        self._postmaster: Postmaster | None = None
        self._disposable = False
        self._stopped = False
        self._process = os.getpid()

    @classmethod
    def start(
        cls, data_dir: Path | str, *, binaries: Binaries | None = None,
        settings: Mapping[str, str] | None = None, shared: bool = False,
        listen: str | None = None,
    ) -> Server:
        """Make the cluster if there is none, start its server and wait until it answers.

        ``data_dir`` may be absent, an empty folder, or a cluster. As root, a
        new cluster goes to a private folder below /var/tmp and ``data_dir``
        becomes a link to it; an empty folder of an ordinary account, or an
        existing cluster, is used where it is, under its owner.
        ``binaries``: by default those that fit the cluster, else the first
        found. ``settings`` go on the server's command line, where ALTER SYSTEM
        can't change them; they count for the process that starts the server.
        ``shared``: join the server if it runs, leave it to others on ``stop``.
        ``listen`` (an address such as ``"127.0.0.1"``): also TCP, on a free
        port that stays the same over ``restart``, with a random password.

        Raises ``UsageError`` (no programs, a cluster of another major version
        or account, a folder in use) and ``DatabaseUnavailable`` (the server
        did not come up; the end of its log is in the message).
        """
        return cls._open(locate(Path(data_dir)), binaries, settings, shared, listen)

    @classmethod
    def temporary(
        cls, *, binaries: Binaries | None = None, settings: Mapping[str, str] | None = None,
        listen: str | None = None,
    ) -> Server:
        """Like ``start``, with an empty cluster in a new folder that ``stop`` deletes."""
        place = disposable_place()
        try:
            server = cls._open(place, binaries, settings, False, listen)
        except BaseException:
            place.remove()
            raise
        server._disposable = True
        return server

    @classmethod
    def _open(
        cls, place: Place, binaries: Binaries | None, settings: Mapping[str, str] | None,
        shared: bool, listen: str | None, password: str | None = None,
    ) -> Server:
        if shared and listen:
            raise UsageError("listen: a shared server has no TCP port; start a private one")
        place.prepare()
        with sharing.turn(place.run_dir, place.account):
            fitting = _fitting(binaries, place.data_dir)
            membership = sharing.Membership(place.run_dir, place.account, shared=shared)
            try:
                server = cls(
                    place, fitting, settings or {}, membership, shared=shared, listen=listen
                )
                server._password = password
                server._come_up()
            except BaseException:
                membership.leave()
                raise
        # Holds a reference on purpose: a collected object must not stop its server.
        atexit.register(server._at_exit)
        return server

    @property
    def version(self) -> int:
        """The major version."""
        return self._binaries.version

    @property
    def bin_dir(self) -> Path:
        """The folder of psql, pg_dump and the rest, for this process to run."""
        return self._binaries.bin_dir

    @property
    def data_dir(self) -> Path:
        """The cluster's real folder."""
        return self._place.data_dir

    @property
    def log(self) -> Path:
        """What the server printed since it was last started; ``.1`` is the time before."""
        return self._place.log

    @property
    def pid(self) -> int:
        """The process id of the postmaster. Raises ``UsageError`` when it is down."""
        return self._running().pid

    @property
    def port(self) -> int:
        """The port of the TCP address, if any, and in the name of the socket."""
        return self._port

    @property
    def running(self) -> bool:
        """True while the server process lives."""
        return self._postmaster is not None and self._postmaster.alive()

    def url(self, database: str = "postgres", *, tcp: bool = False) -> str:
        """The connection URL of a database, by the socket.

        ``tcp=True`` gives the address of ``listen``, and holds the password.
        """
        if not tcp:
            return cluster.url(self._socket_dir, self._port, database)
        if self._listen is None:
            raise UsageError("tcp: this server was started without listen")
        host = f"[{self._listen}]" if ":" in self._listen else self._listen
        login = f"{cluster.SUPERUSER}:{self._password}"
        return f"postgresql://{login}@{host}:{self._port}/{quote(database, safe='')}"

    def stop(self, mode: Mode = "fast") -> None:
        """Stop a private server; leave a shared one, which the last to leave stops.

        ``mode`` is pg_ctl's: smart waits for clients, fast disconnects them,
        immediate is ``crash``. After a minute it gets rougher. A second call
        does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        atexit.unregister(self._at_exit)
        with sharing.turn(self._place.run_dir, self._place.account):
            last = self._membership.leave()
            if not self._shared or (last and not kept.is_kept(self._place)):
                self._shut_down(mode)
        if self._disposable:
            self._place.remove()

    def crash(self) -> None:
        """Stop it without a checkpoint (immediate): the next start recovers."""
        self._running().stop("immediate")

    def kill(self) -> None:
        """SIGKILL the postmaster and all its children, as when the power goes."""
        self._running().kill()

    def restart(self, mode: Mode = "fast") -> None:
        """Stop it, unless it is down, and start it again at the same address.

        For a server that ``crash`` or ``kill`` brought down, too; not after ``stop``.
        """
        if self._stopped:
            raise UsageError("restart: this server was given up by stop; start it anew")
        with sharing.turn(self._place.run_dir, self._place.account):
            self._shut_down(mode)
            self._come_up()

    def keep(self) -> None:
        """Let a shared server stay up when the last process leaves, until it stops."""
        kept.keep(self._place)

    def base_backup(
        self, target_dir: Path | str | None = None, *,
        settings: Mapping[str, str] | None = None, listen: str | None = None,
    ) -> Server:
        """Copy this server to a streaming standby and start that.

        ``target_dir`` must be absent or empty; None: a temporary one. Its
        ``cluster_name`` setting is its name in synchronous_standby_names.
        """
        account = self._place.account
        place = locate(Path(target_dir), account) if target_dir else disposable_place(account)
        try:
            place.prepare()
            with sharing.turn(place.run_dir, place.account):
                standby.copy(self._programs, self._socket_dir, self._port, place)
            if listen and self._password is None:
                self._give_password()  # here: a standby can't be written to
            other = self._open(place, self._binaries, settings, False, listen, self._password)
        except BaseException:
            if target_dir is None:
                place.remove()
            raise
        other._disposable = target_dir is None
        return other

    def promote(self) -> None:
        """Make a standby the primary; returns when it takes writes."""
        with self._connect() as connection:
            standby.promote(connection)

    def follow(self, primary: Server) -> None:
        """Turn this stopped or crashed server into a standby of ``primary`` (pg_rewind)."""
        with sharing.turn(self._place.run_dir, self._place.account):
            self._shut_down("fast")
            cluster.clear_traces_of_the_dead(self._place, self._socket_dir)
            with primary._connect() as connection:
                connection.execute("checkpoint")  # until then pg_rewind sees the old timeline
            standby.rewind(self._programs, primary._socket_dir, primary._port, self._place)
            self._come_up()

    def _come_up(self) -> None:
        found = self._appearing()
        if found is not None:
            if not is_our_socket_folder(found.socket_dir, self._place):
                raise UsageError(
                    f"a server that was not started here already runs on {self.data_dir}"
                )
            if self._shared:
                return self._join(found)
            if kept.is_kept(self._place):
                raise UsageError(f"the server on {self.data_dir} is kept up; stop it first")
            Postmaster(found.pid).stop("fast")  # its starter was killed: nobody has the lock
        cluster.initialise(self._place, self._programs)
        self._launch()
        if self._listen and self._password is None:
            try:
                self._give_password()
            except BaseException:
                self._shut_down("immediate")
                raise

    def _give_password(self) -> None:
        password = secrets.token_urlsafe(24)
        with self._connect() as connection:
            set_password(connection, password)
        self._password = password

    def _appearing(self) -> cluster.Record | None:
        """The server that answers now, or in a moment if it is just coming or going."""
        deadline = time.monotonic() + APPEARING_SECONDS
        while (found := cluster.record(self.data_dir)) is not None:
            if found.listening():
                return found
            if not cluster.runs_on(found.pid, self.data_dir) or time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return None

    def _join(self, found: cluster.Record) -> None:
        self._postmaster = Postmaster(found.pid)
        self._socket_dir, self._port = found.socket_dir, found.port
        trouble = wait_until_ready(self._postmaster, self._socket_dir, self._port)
        if trouble:
            raise DatabaseUnavailable(f"the server on {self.data_dir} ended: {trouble}")

    def _launch(self) -> None:
        self._socket_dir = socket_folder(self._place)
        draw = self._port == 0
        for _ in range(ATTEMPTS):
            if draw and self._listen:
                self._port = cluster.free_port(self._listen)
            trouble = self._try_to_launch()
            if not trouble:
                return
            if not any(passing in trouble for passing in PASSING_TROUBLES):
                break
            time.sleep(0.1)
        raise DatabaseUnavailable(
            f"PostgreSQL {self.version} did not start on {self.data_dir}: {trouble}"
        )

    def _try_to_launch(self) -> str | None:
        cluster.clear_traces_of_the_dead(self._place, self._socket_dir)
        words = cluster.options(
            self._settings, self._socket_dir, self._port, self._listen or ""
        )
        begin = Postmaster.detached if self._shared else Postmaster.as_child
        postmaster = begin(
            self._place.account, self.log,
            [self._programs / "postgres", "-D", self.data_dir, *words],
        )
        try:
            trouble = wait_until_ready(postmaster, self._socket_dir, self._port)
        except BaseException:
            postmaster.stop("immediate")
            raise
        if trouble is None:
            self._postmaster = postmaster
            return None
        postmaster.stop("immediate")
        return _end_of(self.log) or trouble

    def _shut_down(self, mode: Mode) -> None:
        if self._shared:
            found = cluster.record(self.data_dir)  # somebody else may have restarted it
            alive = found is not None and found.listening()
            self._postmaster = Postmaster(found.pid) if found and alive else None
        if self._postmaster is not None:
            self._postmaster.stop(mode)
            self._postmaster = None
        drop_socket_folder(self._socket_dir, self._place)

    def _running(self) -> Postmaster:
        if self._postmaster is None or not self._postmaster.alive():
            raise UsageError(f"the server on {self.data_dir} is not running")
        return self._postmaster

    def _connect(self) -> Any:
        return connect(self._socket_dir, self._port)

    def _at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked child leaves by exiting
            self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _fitting(asked: Binaries | None, data_dir: Path) -> Binaries:
    made_by = cluster.major_version(data_dir)
    if made_by is None:
        return asked or find_binaries()
    known = [asked] if asked else all_binaries()
    for binaries in known:
        if binaries.version == made_by:
            return binaries
    others = ", ".join(str(binaries.version) for binaries in known) or "none"
    raise UsageError(
        f"{data_dir} was made by PostgreSQL {made_by}, and the programs here are of {others}; "
        f"name those of {made_by} with SOKKA_PG_BIN, or begin an empty cluster in another folder"
    )


def _end_of(log: Path) -> str:
    """The last lines of a log that an ordinary account owns; no link is followed."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - 4000))
        lines = file.read(4000).decode(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-6:])
