"""Plans: what a context does, without saying whether it blocks or awaits.

A plan is a generator. It yields what it wants done, and is sent the answer or
thrown the error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


class Ask:
    """A verb of the store."""

    __slots__ = ("arguments", "options", "verb")

    def __init__(self, verb: str, *arguments: Any, **options: Any) -> None:
        self.verb, self.arguments, self.options = verb, arguments, options


@dataclass(frozen=True, slots=True)
class Invoke:
    """A function of the user's; an awaitable that it returns is awaited, where one can."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Until there is news, but no longer than ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Landing:
    """Until a write that is under way elsewhere is done, but no longer than ``seconds``."""

    flight: Future[None]
    seconds: float


Step: TypeAlias = Ask | Invoke | Pause | Landing
Plan: TypeAlias = Generator[Step, Any, T]


def carry_out(plan: Plan[T], do: Callable[[Step], Any]) -> T:
    """The plan's value, with ``do`` for each of its steps."""
    try:
        step = next(plan)
        while True:
            try:
                answer = do(step)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def carry_out_async(plan: Plan[T], do: Callable[[Step], Awaitable[Any]]) -> T:
    """``carry_out``, awaiting each step."""
    try:
        step = next(plan)
        while True:
            try:
                answer = await do(step)
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


def asking(store: Any) -> Callable[[Any], Any]:
    """How a plan that only asks is carried out on a store, sync or async."""
    return lambda ask: getattr(store, ask.verb)(*ask.arguments, **ask.options)
