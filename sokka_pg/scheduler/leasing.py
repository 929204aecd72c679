"""Leases of either kind of locker, for the scheduler's loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar, cast

from sokka_pg.scheduler.calling import in_thread
from sokka_pg.scheduler.job import LeasePlan
from sokka_pg.scheduler.keeping import Keeper
from sokka_pg.scheduler.locker import AsyncLease, AsyncLocker, Lease, Locker

Releasable = TypeVar("Releasable", bound=Lease)


@dataclass(frozen=True, slots=True)
class Held:
    """A lease and its keeper."""

    lease: Lease | AsyncLease
    keeper: Keeper

    async def give_up(self) -> None:
        """Renew no more, and release."""
        self.keeper.stop()
        if inspect.iscoroutinefunction(self.lease.release):
            await self.lease.release()
        else:
            await in_thread(self.lease.release)


async def acquire(locker: Locker | AsyncLocker, plan: LeasePlan) -> Held | None:
    """The lease, kept from now on; None while somebody holds it. Raises what the locker does."""
    sent_at = monotonic()
    lease: Lease | AsyncLease | None
    if inspect.iscoroutinefunction(locker.try_acquire):
        lease = await cast(AsyncLocker, locker).try_acquire(plan.key, plan.ttl)
    else:
        lease = await obtained(partial(cast(Locker, locker).try_acquire, plan.key, plan.ttl))
    if lease is None:
        return None
    renew: Callable[[], object] = partial(lease.renew, plan.ttl)
    if inspect.iscoroutinefunction(lease.renew):
        loop = asyncio.get_running_loop()
        renew = partial(_renew_on, loop, cast(AsyncLease, lease), plan)
    keeper = Keeper(plan.key, renew, plan.ttl, sent_at, plan.renew_interval)
    keeper.start()
    return Held(lease, keeper)


async def obtained(ask: Callable[[], Releasable | None]) -> Releasable | None:
    """What ``ask`` acquires, asked in a thread. If nobody waits any more, it is given back."""
    asking = in_thread(ask)
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        asking.add_done_callback(_give_back)
        raise


def _give_back(asked: asyncio.Future[Releasable | None]) -> None:
    lease = None if asked.exception() else asked.result()
    if lease is not None:
        # it runs out by itself, whatever becomes of the release
        in_thread(lease.release).add_done_callback(lambda released: released.exception())


def _renew_on(loop: asyncio.AbstractEventLoop, lease: AsyncLease, plan: LeasePlan) -> None:
    if loop.is_closed():
        raise RuntimeError("the event loop of the lease is closed")
    renewing = asyncio.run_coroutine_threadsafe(_renew_async(lease, plan), loop)
    try:
        renewing.result(plan.ttl.total_seconds())
    except TimeoutError:
        with suppress(RuntimeError):
            renewing.cancel()
        raise


async def _renew_async(lease: AsyncLease, plan: LeasePlan) -> None:
    await lease.renew(plan.ttl)
