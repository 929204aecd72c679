"""A process of the run ends with the run, also where that is killed."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
PARENT = "SOKKA_CHAOS_PARENT"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. The parent's thread that
    started it counts: those of the event loop and of its pool live as long as the run."""
    wanted = os.environ.get(PARENT)
    if wanted is None or not hasattr(signal, "SIGKILL"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(wanted):
        os._exit(1)  # it ended before it could be watched
