"""What the product's own clients may not do, whatever the database lets them: I3, I8, F16."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.faults.chaos.faults.versions import new_errors
from tests.faults.chaos.judging.queue import OWNERS
from tests.faults.chaos.judging.reading import Reading, attempted
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL


def check(reading: Reading) -> Iterator[Fault]:
    act = reading.act
    yield from sent_twice(reading)
    yield from borrowed(reading)
    for sqlstate, count in new_errors(act).items():
        message = f"the old release was told {sqlstate} {count} times, since the migration alone"
        yield Fault("F16", act.name, "", message)


def sent_twice(reading: Reading) -> Iterator[Fault]:
    """An enqueue that nothing makes safe to repeat is sent once. What a producer intends to
    be one task carries one order in its headers."""
    sent: Counter[tuple[str, str]] = Counter()
    for function in ("create_task", "create_tasks"):
        for call in reading.calls.get(function, ()):
            if reading.state(call) == FAIL:
                continue
            for spec in attempted(call):
                order = _order(spec)
                if order and not spec.get("task_id") and not spec.get("unique_key"):
                    sent[call.process, order] += 1
    for (process, order), times in sent.items():
        if times > 1:
            message = f"order {order} of {process} was sent {times} times: it may be so many tasks"
            yield Fault("I8", reading.act.name, "", message)


def _order(spec: dict[str, Any]) -> str:
    headers = spec.get("headers")
    found = json.loads(headers) if isinstance(headers, str) else headers
    return str((found or {}).get("order") or "")


def borrowed(reading: Reading) -> Iterator[Fault]:
    """A worker writes under its own leases."""
    for task, words in reading.of_task.items():
        for word in words:
            owner = word.call.pid
            if word.verb in OWNERS and owner and word.pid and word.pid != owner and word.ok:
                message = f"{owner} wrote under the lease of {word.pid}"
                yield Fault("I3", reading.act.name, task, message)
