"""Steps: done once in a task's life, however often its handler starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sokka_pg.calls import arguments
from sokka_pg.context.plans import Ask, Invoke, Plan
from sokka_pg.errors import UsageError
from sokka_pg.model import Json

if TYPE_CHECKING:
    from sokka_pg.context.common import AnyContext


class Steps:
    """The steps of one attempt; what earlier ones recorded is read at the first."""

    def __init__(self, context: AnyContext) -> None:
        self._context = context
        self._used: set[str] = set()
        self._recorded: dict[str, Json] | None = None

    def step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Plan[Json]:
        """What the step gave, now or when it was recorded."""
        arguments.name(name, "name")
        if name in self._used:
            raise UsageError(f"step {name!r} was done in this attempt already: names are unique")
        self._used.add(name)
        try:
            return (yield from self._once(name, Invoke(function, args, kwargs)))
        except BaseException:
            self._used.discard(name)
            raise

    def _once(self, name: str, call: Invoke) -> Plan[Json]:
        yield from self._context.owning()
        if self._recorded is None:
            found = yield Ask("steps", self._context.task.task_id)
            self._recorded = {step.name: step.value for step in found}
        if name in self._recorded:
            return self._recorded.pop(name)
        value = yield call
        answer = yield Ask("record_step", self._context.lease, name=name, value=value)
        return answer.value
