"""Behind PgBouncer in transaction mode, beside a direct connection."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.bench import pgbench
from tests.bench.book import Book, Measure
from tests.bench.crew import until
from tests.bench.host import Host, Site
from tests.bench.parts import drain, enqueue
from tests.bench.plan import Plan
from tests.faults import programs

_PORT = 6432
_LEAST = 0.8


def run(host: Host, plan: Plan, book: Book) -> None:
    bouncer = programs.find("pgbouncer")
    if bouncer is None:
        book.leave_out("pooler", "pgbouncer is not installed")
        return
    with _running(bouncer, host) as place:
        _compare(host, plan, book, place)


def _compare(host: Host, plan: Plan, book: Book, place: Path) -> None:
    load = drain.Load("drain")
    script = enqueue.script("hold")

    def enqueued(pooled: bool) -> float:
        # Simple statements: a pooler of this age knows no prepared ones.
        with host.site() as site:
            return pgbench.transactions_per_second(
                site, script, clients=8, seconds=plan.seconds, protocol="simple",
                url=_url(place, site) if pooled else None,
            )  # fmt: skip

    def drained(pooled: bool) -> float:
        if not pooled:
            return drain.measure(host, plan, load).rate
        return drain.measure(
            host, plan, load, "--pooler", url=lambda site: _url(place, site)
        ).rate

    for what, work in (("create_task, 8 clients", enqueued), ("drain", drained)):
        names = f"{what}, direct", f"{what}, through PgBouncer"
        book.compare("pooler", [
            Measure(names[0], lambda work=work: work(False)),
            Measure(names[1], lambda work=work: work(True)),
        ])  # fmt: skip
        book.ratio("pooler", f"{what}: through PgBouncer / direct", names[1], names[0],
                   least=_LEAST)  # fmt: skip


def _url(place: Path, site: Site) -> str:
    return f"postgresql://postgres@/{site.name}?host={place}&port={_PORT}"


@contextmanager
def _running(bouncer: str, host: Host) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="skb"))  # short: the socket lies in it
    target = conninfo_to_dict(host.server.url())
    config = place / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={target['host']} port={target['port']} user={target['user']}\n"
        "[pgbouncer]\npool_mode = transaction\nauth_type = any\nlisten_addr =\n"
        f"listen_port = {_PORT}\nunix_socket_dir = {place}\nlogfile = {place}/log\n"
        "default_pool_size = 10\nmax_client_conn = 300\nignore_startup_parameters = "
        "extra_float_digits,options\n"
    )
    account = _account(host, place)
    process = subprocess.Popen(
        [bouncer, "-q", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd="/", start_new_session=True, **account,
    )  # fmt: skip
    try:
        until(lambda: (place / f".s.PGSQL.{_PORT}").exists(), "PgBouncer")
        yield place
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(place)


def _account(host: Host, place: Path) -> dict[str, int | list[int]]:
    """It refuses to run as root: then it is whoever owns the server's files."""
    if os.geteuid() != 0:
        return {}
    owner = pwd.getpwuid(host.server.data_dir.stat().st_uid)
    for path in (place, *place.iterdir()):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
