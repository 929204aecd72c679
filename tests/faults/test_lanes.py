"""Async handlers share long-lived tasks of the loop: none of them may notice."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import pytest

from sokka_pg.context import TaskContext
from sokka_pg.engine.words import Reason, Settlement, Verb
from sokka_pg.registry import Mode, PayloadReader, TaskSpec
from sokka_pg.runner.attempt import Attempt
from sokka_pg.runner.lanes import Lanes
from tests.unit.tasks_made_up import leased

Handler = Callable[..., Any]


class Track:
    """Lanes, and what came of the attempts."""

    def __init__(self) -> None:
        self.lanes = Lanes(asyncio.get_running_loop(), self._ended)
        self.ended: dict[int, Settlement | None] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def _ended(self, attempt: Attempt, settlement: Settlement | None) -> None:
        attempt.over, attempt.unit = True, None
        attempt.ended_at = monotonic()
        self.ended[attempt.task.token] = settlement
        self._waiting[attempt.task.token].set_result(None)

    def put(self, handler: Handler) -> Attempt:
        spec = TaskSpec("send", "mail", handler, Mode.ASYNC, PayloadReader(handler, Mode.ASYNC))
        task = leased()
        attempt = Attempt(task, spec, TaskContext(task, None), 0.0)  # type: ignore[arg-type]
        self._waiting[task.token] = asyncio.get_running_loop().create_future()
        self.lanes.put(attempt)
        return attempt

    async def end_of(self, attempt: Attempt) -> Settlement | None:
        await self._waiting[attempt.task.token]
        return self.ended[attempt.task.token]

    async def run(self, handler: Handler) -> Settlement | None:
        return await self.end_of(self.put(handler))


@pytest.fixture
async def track() -> AsyncIterator[Track]:
    made = Track()
    yield made
    made.lanes.close()
    await asyncio.sleep(0.01)
    assert len(made.lanes) == 0


async def current() -> int:
    return id(asyncio.current_task())


async def test_handlers_that_do_not_wait_share_one_lane(track: Track) -> None:
    attempts = [track.put(current) for _ in range(50)]
    ends = [await track.end_of(each) for each in attempts]
    assert len({end.arg for end in ends if end is not None}) == 1
    assert len(track.lanes) == 1


async def test_handlers_that_waited_leave_their_lanes_to_others(track: Track) -> None:
    barrier = asyncio.Barrier(10)

    async def meets() -> int:
        await barrier.wait()
        await asyncio.sleep(0)
        return id(asyncio.current_task())

    for _ in range(5):
        attempts = [track.put(meets) for _ in range(10)]
        ends = [await track.end_of(each) for each in attempts]
        assert len({end.arg for end in ends if end is not None}) == 10
    assert len(track.lanes) == 10


async def test_all_that_were_put_wait_at_the_same_time(track: Track) -> None:
    barrier = asyncio.Barrier(20)

    async def meets() -> None:
        await barrier.wait()

    async with asyncio.timeout(5):
        for attempt in [track.put(meets) for _ in range(20)]:
            await track.end_of(attempt)


async def test_a_handler_that_waits_holds_nobody_up(track: Track) -> None:
    order: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        order.append("slow")

    async def quick() -> None:
        order.append("quick")

    attempts = [track.put(each) for each in (slow, quick, slow, quick)]
    for attempt in attempts:
        await track.end_of(attempt)
    assert order == ["quick", "quick", "slow", "slow"]


async def test_what_a_handler_sets_in_its_context_nobody_sees_after_it(track: Track) -> None:
    said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")

    async def before_it_waits() -> str:
        found = said.get()
        said.set("before")
        await asyncio.sleep(0)
        return f"{found}, {said.get()}"

    async def after_it_waited() -> str:
        await asyncio.sleep(0)
        found = said.get()
        said.set("after")
        await asyncio.sleep(0)
        return f"{found}, {said.get()}"

    async def by_a_callback() -> str:
        done = asyncio.Event()

        def later() -> None:
            said.set("never seen")  # a callback runs in a copy of its own
            done.set()

        asyncio.get_running_loop().call_soon(later)
        await done.wait()
        return said.get()

    for _ in range(3):
        for handler, found in (
            (before_it_waits, "nothing, before"), (after_it_waited, "nothing, after"),
            (by_a_callback, "nothing"),
        ):
            end = await track.run(handler)
            assert end is not None
            assert end.arg == f'"{found}"'
    assert said.get() == "nothing"


async def test_a_halt_hits_the_attempt_it_was_meant_for_and_no_later_one(track: Track) -> None:
    """At every moment of an attempt's life: while it is queued, waits, or is about to go on."""
    hit: list[int] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0.002)
            await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            hit.append(1)
            raise

    for turns in range(12):
        attempt, other = track.put(waits), track.put(waits)
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        if not attempt.over:
            attempt.reason = Reason.STOP
            if attempt.unit is not None:
                attempt.unit.cancel()
        end, kept = await track.end_of(attempt), await track.end_of(other)
        assert kept is not None and kept.verb is Verb.TERMINATE
        assert end is not None
        assert end.verb is (Verb.RELEASE if attempt.reason else Verb.TERMINATE)
        for follower in [track.put(waits) for _ in range(3)]:
            end = await track.end_of(follower)
            assert end is not None and end.verb is Verb.TERMINATE
    assert hit


async def swallows() -> str:
    with_task = asyncio.current_task()
    assert with_task is not None
    with_task.cancel()
    try:
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        return "swallowed"
    return "never"


async def cancels_itself_and_returns() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "went on"


async def cancels_takes_it_back_and_returns() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.uncancel()
    return "went on"


async def lets_a_timer_cancel_it_later() -> str:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.01, task.cancel)
    return "went on"


_kept: list[Any] = []


async def is_kept_by_somebody() -> str:
    _kept.append(asyncio.current_task())
    await asyncio.sleep(0)
    return "went on"


async def times_out() -> str:
    try:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(10)
    except TimeoutError:
        return "timed out"
    return "never"


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (swallows, "swallowed"), (cancels_itself_and_returns, "went on"),
        (cancels_takes_it_back_and_returns, "went on"),
        (lets_a_timer_cancel_it_later, "went on"), (is_kept_by_somebody, "went on"),
        (times_out, "timed out"),
    ],
)
async def test_a_cancellation_that_a_handler_leaves_behind_hits_no_other(
    track: Track, first: Handler, said: str
) -> None:
    async def waits() -> int:
        await asyncio.sleep(0.03)
        task = asyncio.current_task()
        return 0 if task is None else task.cancelling()

    # some stand right behind it in the queue, others come when it has ended
    begun = track.put(first)
    behind = [track.put(waits) for _ in range(3)]
    end = await track.end_of(begun)
    assert end is not None
    assert end.arg == f'"{said}"'
    while _kept:
        asyncio.get_running_loop().call_later(0.01, _kept.pop().cancel)
    for attempt in [*behind, *(track.put(waits) for _ in range(3))]:
        end = await track.end_of(attempt)
        assert end is not None
        assert (end.verb, end.arg) == (Verb.TERMINATE, "0")


async def test_a_timeout_of_a_handler_is_its_own(track: Track) -> None:
    assert (await track.run(times_out)).arg == '"timed out"'  # type: ignore[union-attr]
    lanes = len(track.lanes)
    assert (await track.run(times_out)).arg == '"timed out"'  # type: ignore[union-attr]
    assert len(track.lanes) == lanes


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(1),
               asyncio.CancelledError(), RecursionError()],
)
@pytest.mark.parametrize("waits", [False, True])
async def test_whatever_is_raised_the_lane_goes_on(
    track: Track, raised: BaseException, waits: bool
) -> None:
    async def raises() -> None:
        if waits:
            await asyncio.sleep(0)
        raise raised

    end = await track.run(raises)
    assert end is not None
    assert end.verb is Verb.RETRY
    assert (await track.run(current)).verb is Verb.TERMINATE  # type: ignore[union-attr]


async def test_what_is_no_coroutine_or_yields_nonsense_fails_alone(track: Track) -> None:
    class Nonsense:
        def __await__(self) -> Any:
            yield "nonsense"

    async def nonsense() -> None:
        await Nonsense()

    ends = [await track.run(each) for each in (nonsense, lambda: 3, lambda: Nonsense())]
    assert [end.verb for end in ends if end is not None] == [Verb.RETRY] * 3
    assert (await track.run(current)).verb is Verb.TERMINATE  # type: ignore[union-attr]


async def test_a_busy_lane_lets_timers_and_others_have_their_turn(track: Track) -> None:
    ticks: list[float] = []
    loop = asyncio.get_running_loop()

    def tick() -> None:
        ticks.append(loop.time())
        loop.call_later(0.001, tick)

    async def busy() -> None:
        until = loop.time() + 0.0005
        while loop.time() < until:
            pass

    tick()
    for attempt in [track.put(busy) for _ in range(100)]:
        await track.end_of(attempt)
    assert len(ticks) >= 8


async def test_one_who_waits_for_ever_keeps_its_lane_until_it_ends(track: Track) -> None:
    released = asyncio.Event()

    async def stuck() -> None:
        await released.wait()

    attempt = track.put(stuck)
    assert (await track.run(current)).verb is Verb.TERMINATE  # type: ignore[union-attr]
    track.lanes.close()
    released.set()
    assert (await track.end_of(attempt)) is not None


def test_a_loop_that_ends_under_a_waiting_handler_closes_it_cleanly() -> None:
    closed: list[str] = []

    async def main() -> None:
        track = Track()

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                closed.append("closed")

        track.put(waits)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert closed == ["closed"]




async def test_lanes_that_somebody_cancels_while_they_rest_keep_nobody_waiting(
    track: Track,
) -> None:
    await track.run(current)
    for called in (False, True):
        attempt = track.put(current) if called else None
        for task in asyncio.all_tasks():
            if task.get_name() == "sokka-lane":
                task.cancel()
        if attempt is None:
            await asyncio.sleep(0)
            attempt = track.put(current)
        async with asyncio.timeout(5):
            end = await track.end_of(attempt)
        assert end is not None
        assert end.verb is Verb.TERMINATE
