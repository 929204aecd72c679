"""The lease keeper's threads leave the one alone who brings a lease."""

from __future__ import annotations

import threading
from datetime import timedelta
from uuid import uuid4

import pytest

from sokka_pg.engine.leases import Hold
from sokka_pg.lease_keeper import LeaseKeeper


class Ward:
    def __init__(self) -> None:
        self.lost: list[int] = []
        self.told = threading.Event()

    def lease_lost(self, token: int, reason: str, /) -> None:
        self.lost.append(token)
        self.told.set()

    def cancel_requested(self, token: int, /) -> None: ...


def keeper(ward: Ward, lease: timedelta) -> LeaseKeeper:
    # nobody listens there: no lease can be extended
    return LeaseKeeper("postgresql://127.0.0.1:1/none", "sokka", "w", lease, ward)


def test_a_lease_that_comes_wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take the interpreter from the handler that is about to start."""
    made = keeper(Ward(), timedelta(hours=1))

    def never(self: threading.Condition, n: int = 1) -> None:
        raise AssertionError("a thread was woken")

    monkeypatch.setattr(threading.Condition, "notify", never)
    made.add([Hold(uuid4(), 1, made._clock())])
    assert len(made) == 1


def test_a_lease_that_comes_while_the_threads_sleep_is_watched_all_the_same() -> None:
    ward = Ward()
    made = keeper(ward, timedelta(seconds=0.6))
    made.start()
    try:
        made.add([Hold(uuid4(), 7, made._clock())])
        assert ward.told.wait(20)
        assert ward.lost == [7]
    finally:
        made.close()
