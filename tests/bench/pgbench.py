"""Raw SQL by pgbench: a client in C, so that the load's source is not what is measured."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.bench.host import Site

_A_LOOK = 10


def transactions_per_second(
    site: Site, script: str, *, clients: int = 1, seconds: int | None = None,
    transactions: int | None = None, variables: Mapping[str, str] | None = None,
    url: str | None = None, protocol: str = "prepared",
) -> float:
    """Run one script; either for ``seconds`` or ``transactions`` times per client. No second
    at all is a look at whether it runs."""
    length = ["-T", str(seconds)] if seconds else ["-t", str(transactions or _A_LOOK)]
    given = [word for k, v in (variables or {}).items() for word in ("-D", f"{k}={v}")]
    target = conninfo_to_dict(url or site.url)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.sql"
        file.write_text(script)
        done = subprocess.run(
            [
                site.host.server.bin_dir / "pgbench", "-n", "-M", protocol, "-f", file,
                "-c", str(clients), "-j", str(min(clients, 2)), *length, *given,
                "-h", str(target["host"]), "-p", str(target.get("port", 5432)),
                "-U", str(target.get("user", "postgres")), str(target["dbname"]),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"pgbench: {done.stderr[-2000:] or done.stdout[-2000:]}")
    return float(found[1])
