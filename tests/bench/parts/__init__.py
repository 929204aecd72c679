"""The parts of the bench, in the order in which they run.

Each is a function of a host, a plan and a book.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tests.bench.book import Book
from tests.bench.host import Host
from tests.bench.parts import (
    bulk,
    costs,
    drain,
    enqueue,
    fairness,
    finished,
    floor,
    idle,
    latency,
    pinned,
    pooler,
    storms,
    weight,
)
from tests.bench.plan import Plan

Part: TypeAlias = Callable[[Host, Plan, Book], None]

PARTS: dict[str, Part] = {
    "floor": floor.run,
    "enqueue": enqueue.run,
    "bulk": bulk.run,
    "drain": drain.run,
    "latency": latency.run,
    "fairness": fairness.run,
    "extend storm": storms.extends,
    "retries storm": storms.retries,
    "delayed": storms.delayed,
    "finished": finished.run,
    "pinned": pinned.run,
    "weight": weight.run,
    "idle": idle.run,
    "pooler": pooler.run,
    "history": costs.history,
    "metrics": costs.metrics,
    "notify": costs.notify,
}
