"""Fan-outs of a handler: made once, waited for without a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from sokka_pg.calls import arguments
from sokka_pg.context.plans import Ask, Plan
from sokka_pg.errors import UsageError
from sokka_pg.gather import (
    CandidateResult,
    FanOutRequest,
    FanOutResult,
    Request,
    ScatterGatherRequest,
    ScatterGatherResult,
    candidate_results,
    fan_out_result,
    join_options,
    scatter_gather_result,
    specs,
)
from sokka_pg.model import Join, JoinResult, Status, Wait

if TYPE_CHECKING:
    from sokka_pg.context.common import AnyContext

PAGE = 1_000


class FanOuts:
    """The fan-outs of one attempt. The id of each follows from the task's and its name,
    so a handler that starts anew meets those that it made before."""

    def __init__(self, context: AnyContext) -> None:
        self._context = context
        self._asked: dict[str, object] = {}

    def start(self, name: str, request: Request) -> Plan[UUID]:
        """Make it, unless it was made; its id."""
        join_id, _ = yield from self._made(name, request)
        return join_id

    def fan_out(self, name: str, request: FanOutRequest) -> Plan[FanOutResult]:
        join_id = yield from self._final(name, request)
        join = yield Ask("join", join_id)
        return fan_out_result(join, (yield from all_rows(join_id)))

    def scatter_gather(
        self, name: str, request: ScatterGatherRequest
    ) -> Plan[ScatterGatherResult]:
        join_id = yield from self._final(name, request)
        task = yield Ask("task", join_id)
        join = yield Ask("join", join_id)
        rows = yield from all_rows(join_id)
        return scatter_gather_result(task, join, rows, request.reducer, request.then)

    def own_results(self) -> Plan[tuple[CandidateResult, ...]]:
        """Those of the candidates of this task, which is a fan-out itself."""
        task_id = self._context.task.task_id
        join: Join | None = yield Ask("join", task_id)
        if join is None:
            raise UsageError("this task is no fan-out: it has no candidates")
        return candidate_results(join, (yield from all_rows(task_id)))

    def _final(self, name: str, request: Request) -> Plan[UUID]:
        join_id, status = yield from self._made(name, request)
        if not status.final:
            self._context.refuse_to_wait()
            raise Wait(join_id)
        return join_id

    def _made(self, name: str, request: Request) -> Plan[tuple[UUID, Status]]:
        task = self._context.task
        arguments.name(name, "name")
        said = (request.candidates, request.kind, request.topic, request.policy)
        if self._asked.setdefault(name, said) != said:
            raise UsageError(f"{name!r} names another fan-out of this task already")
        join_id = arguments.uuid(request.task_id or uuid5(task.task_id, name))
        yield from self._context.owning()
        found = yield Ask("task", join_id)
        if found is not None and found.parent_task_id == task.task_id:
            return join_id, found.status
        made = yield Ask(
            "fan_out", specs(request, topic=task.topic), task_id=join_id,
            parent=self._context.lease, **join_options(request, task.topic),
        )
        return join_id, made.status


def all_rows(join_id: UUID) -> Plan[list[JoinResult]]:
    """All candidates of a join, in order, by the page."""
    rows: list[JoinResult] = []
    while True:
        after = rows[-1].candidate if rows else 0
        page = yield Ask("join_results", join_id, after, PAGE)
        rows.extend(page)
        if len(page) < PAGE:
            return rows
