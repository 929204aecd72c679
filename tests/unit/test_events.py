from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from sokka_pg.events import Event, EventFeed, Extended, Swept


class Keeps:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def notice(self, event: Event, /) -> None:
        self.events.append(event)


class Raises:
    def __init__(self, what: BaseException) -> None:
        self.what = what

    def notice(self, event: Event, /) -> None:
        raise self.what


class Hangs:
    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.called = threading.Event()

    def notice(self, event: Event, /) -> None:
        self.called.set()
        self.go_on.wait(20)


def swept(n: int) -> Swept:
    return Swept(n, 0, 0, 0)


def test_observers_get_all_events_in_order() -> None:
    keeps = Keeps()
    feed = EventFeed([keeps])
    feed.emit(swept(1), swept(2))
    feed.emit_all([swept(3)])
    feed.close()
    assert keeps.events == [swept(1), swept(2), swept(3)]


@pytest.mark.parametrize("what", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_an_observer_that_raises_is_named_once_and_the_others_go_on(
    what: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keeps = Keeps()
    feed = EventFeed([Raises(what), keeps])
    with caplog.at_level(logging.WARNING, "sokka_pg"):
        feed.emit(swept(1), swept(2))
        feed.close()
    assert keeps.events == [swept(1), swept(2)]
    assert [r.getMessage() for r in caplog.records] == [
        f"observer Raises raised {type(what).__name__}; its further errors are not logged"
    ]


def test_a_slow_observer_loses_events_instead_of_slowing_anybody() -> None:
    hangs = Hangs()
    feed = EventFeed([hangs], limit=10)
    feed.emit(swept(0))
    assert hangs.called.wait(20)
    for n in range(25):
        feed.emit(swept(n))
    assert feed.dropped == 15
    hangs.go_on.set()
    feed.close()


def test_without_observers_no_thread_is_started() -> None:
    feed = EventFeed()
    before = threading.active_count()
    feed.emit(swept(1))
    assert threading.active_count() == before
    assert not feed.wanted


class Ignores(Keeps):
    def __init__(self, *kinds: Any) -> None:
        super().__init__()
        self.ignores = kinds


class Hostile(Keeps):
    @property
    def ignores(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("observers", "wanted"),
    [
        ([], False),
        ([Keeps()], True),
        ([Ignores(Swept)], False),
        ([Ignores(Swept), Ignores(Extended, Swept)], False),
        ([Ignores(Swept), Ignores(Extended)], True),
        ([Ignores(Swept), Keeps()], True),
        ([Ignores(Swept), Hostile()], True),
        ([Ignores(["no kind"])], True),
    ],
    ids=["nobody", "all", "one", "both", "each another", "one of two", "raises", "nonsense"],
)
def test_a_kind_is_wanted_unless_all_ignore_it(observers: list[Any], wanted: bool) -> None:
    feed = EventFeed(observers)
    assert feed.wants(Swept) == wanted
    assert feed.wanted == bool(observers)


def test_events_that_come_while_others_gather_are_delivered_too() -> None:
    keeps = Keeps()
    feed = EventFeed([keeps])
    for n in range(200):
        feed.emit(swept(n))
        if n % 20 == 0:
            deadline = time.monotonic() + 20
            while len(keeps.events) <= n and time.monotonic() < deadline:
                time.sleep(0.001)
    feed.close()
    assert keeps.events == [swept(n) for n in range(200)]
