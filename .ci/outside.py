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


def main(folder: Path) -> int:
    worst = 0
    for binaries in embedded.all_binaries():
        for check in CHECKS:
            print(f"-- {check} on PostgreSQL {binaries.version}", flush=True)
            with embedded.Server.temporary(binaries=binaries) as server:
                migrate.upgrade(server.url())
                run = subprocess.run(
                    [sys.executable, "-B", folder / check],
                    env={**os.environ, "DSN": server.url()},
                    timeout=600,
                    check=False,
                )
            worst = worst or run.returncode
    return worst


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
