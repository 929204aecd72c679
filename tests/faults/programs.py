"""Programs of the system that some modules need, and what is left out without them."""

from __future__ import annotations

import os
import shutil

# Where Debian puts daemons, which an ordinary user's PATH may lack.
_ALSO = ("/usr/sbin", "/usr/local/sbin")

NEEDED = {"test_pooler.py": "pgbouncer", "test_wrong_clocks.py": "faketime"}


def find(program: str) -> str | None:
    """The program's path, or None where it is not installed."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), *_ALSO)))


def left_out() -> dict[str, str]:
    """Modules of this folder that cannot run here, with the program each misses."""
    return {module: program for module, program in NEEDED.items() if find(program) is None}
