"""What a scheduler is made with: options, as values or as keywords."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from sokka_pg.errors import BadArgument
from sokka_pg.scheduler.events import Observer
from sokka_pg.scheduler.locker import AsyncLocker, Locker

Now: TypeAlias = Callable[[], datetime]


def system_clock() -> datetime:
    """This machine's wall clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of one scheduler."""

    now: Now = system_clock
    locker: Locker | AsyncLocker | None = None
    observers: tuple[Observer, ...] = ()


Option: TypeAlias = Callable[[Setup], Setup]


def with_now(now: Now | None) -> Option:
    """Another clock, which returns aware datetimes; None changes nothing."""
    if now is not None and not callable(now):
        raise BadArgument.of("now", "must be callable", now)
    return lambda setup: setup if now is None else replace(setup, now=now)


def with_locker(locker: Locker | AsyncLocker | None) -> Option:
    """Who gives the leases of jobs that want one."""
    if locker is not None and not callable(getattr(locker, "try_acquire", None)):
        raise BadArgument.of("locker", "must be a Locker or an AsyncLocker", locker)
    return lambda setup: setup if locker is None else replace(setup, locker=locker)


def with_observer(observer: Observer | None) -> Option:
    """One more observer; None changes nothing."""
    if observer is None:
        return lambda setup: setup
    if not callable(getattr(observer, "observe", None)):
        raise BadArgument.of("observer", "must be an Observer", observer)
    return lambda setup: replace(setup, observers=(*setup.observers, observer))


def setup_of(
    options: Iterable[Option],
    now: Now | None,
    locker: Locker | AsyncLocker | None,
    observers: Iterable[Observer],
) -> Setup:
    """Options and keywords together. Raises BadArgument."""
    found = Setup()
    keywords = (with_now(now), with_locker(locker), *map(with_observer, observers))
    for option in (*options, *keywords):
        found = option(found)
    return found
