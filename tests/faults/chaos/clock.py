"""The clock by which every process of a run stamps what it does."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}.get(platform.machine())


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def _real_clock() -> Callable[[], int]:
    """CLOCK_MONOTONIC of the host, also where libfaketime stands before libc's clocks:
    it leaves bare system calls alone."""
    if _CLOCK_GETTIME is None or "LD_PRELOAD" not in os.environ:
        return time.monotonic_ns
    call, number = ctypes.CDLL(None).syscall, ctypes.c_long(_CLOCK_GETTIME)

    def read() -> int:
        found = _Timespec()
        call(number, ctypes.c_long(_CLOCK_MONOTONIC), ctypes.byref(found))
        return int(found.s * 1_000_000_000 + found.ns)

    return read


monotonic_ns = _real_clock()
