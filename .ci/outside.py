"""Run raw-SQL checks of the contract, each on a freshly migrated database of each server.

    python .ci/outside.py FOLDER

The checks take the database from DSN and end with 0 when all holds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sokka_pg import embedded, migrate

CHECKS = ("sql_contract.py", "fence.py", "flat.py")


# It compares rates within one run of a few seconds: a neighbour that wakes up in the
# middle fails it. A decline that is the queue's own is there each time.
TRIES = {"flat.py": 3}


def main(folder: Path) -> int:
    worst = 0
    for binaries in embedded.all_binaries():
        for check in CHECKS:
            code = 1
            for attempt in range(TRIES.get(check, 1)):
                again = f", try {attempt + 1}" if attempt else ""
                print(f"-- {check} on PostgreSQL {binaries.version}{again}", flush=True)
                code = run(folder / check, binaries)
                if code == 0:
                    break
            worst = worst or code
    return worst


def run(check: Path, binaries: embedded.Binaries) -> int:
    """The exit code of one check on a server of its own."""
    with embedded.Server.temporary(binaries=binaries) as server:
        migrate.upgrade(server.url())
        return subprocess.run(
            [sys.executable, "-B", check],
            env={**os.environ, "DSN": server.url()},
            timeout=600,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
