"""What a process does that is a worker's alone."""

from __future__ import annotations

import asyncio
import gc
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]

YOUNG_OBJECTS = 10_000


def spare_collector() -> None:
    """Let the garbage collector look at less, and less often.

    A batch of tasks is a few thousand objects that live for some milliseconds: by
    Python's own threshold (700) each is walked through again and again, and with it
    everything that was imported. Measured: a sixth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def fastest_loop() -> LoopFactory:
    """uvloop's, where it is installed, else that of asyncio."""
    try:
        found: Any = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop
    factory: LoopFactory = found.new_event_loop
    return factory
