"""Fan-outs that nobody's lease stands behind: begun by a program, decided in the database.

Local or by workers, it is the same join over the same tasks. The candidates of a
local one have ids that follow from the join's, so that a repeated request, in a
restarted process of the same scheduler id, meets them again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4, uuid5

from sokka_pg import gather
from sokka_pg.context.fanning import all_rows
from sokka_pg.context.plans import asking, carry_out_async
from sokka_pg.errors import BadArgument, TaskFailed
from sokka_pg.gather import (
    CandidateResult,
    FanOutRequest,
    FanOutResult,
    Reducer,
    Request,
    ScatterGatherRequest,
    ScatterGatherResult,
)
from sokka_pg.model import Join, JoinResult, Status, Task
from sokka_pg.workload.calling import Work, WorkerInvoker
from sokka_pg.workload.local import UNNAMED
from sokka_pg.workload.words import TOPIC

if TYPE_CHECKING:
    from sokka_pg.workload.core import Core

CANDIDATE = "candidate"
PLAIN_JOIN = "join"

Decided: TypeAlias = tuple[Task, Join, list[JoinResult]]
"""A join that is at its end: as a task, as a join, and all its candidates."""


def checked_request(request: object, scatter: bool) -> Any:
    """The request, if it is of the right kind. Raises BadArgument."""
    kind = ScatterGatherRequest if scatter else FanOutRequest
    if not isinstance(request, kind):
        raise BadArgument.of("request", f"must be a {kind.__name__}", request)
    return request


async def start(core: Core, request: Request, invoker: WorkerInvoker | Work) -> UUID:
    """Let the candidates begin; the id of the whole."""
    join_id = UUID(str(request.task_id)) if request.task_id else uuid4()
    if isinstance(invoker, WorkerInvoker):
        topic = invoker.topic or TOPIC
        specs = gather.specs(request, invoker.kind, topic)
        options = gather.join_options(request, topic)
        await core.store.fan_out(specs, **options | {"task_id": join_id})
        return join_id
    return await _start_local(core, request, invoker, join_id)


async def _start_local(core: Core, request: Request, work: Work, join_id: UUID) -> UUID:
    topic, defaults = core.settings.local_topic, await core.local_options()
    ids = [uuid5(join_id, str(index)) for index in range(len(request.candidates))]
    here = replace(request, topic=topic)
    specs = [
        {**defaults, **spec, "task_id": task_id}
        for task_id, spec in zip(ids, gather.specs(here, CANDIDATE), strict=True)
    ]
    # a reducer is a worker's: it must not wait in a topic that only this process serves
    options = gather.join_options(request, topic if request.then is None else TOPIC)
    with core.local.accepting(work, ids, request.kind or UNNAMED) as accepted:
        await core.store.fan_out(specs, **options | {"task_id": join_id})
    core.forget_at_end(accepted, join_id)
    return join_id


async def decided(core: Core, task_id: UUID) -> Decided:
    """Wait until the join is at its end. Raises BadArgument for a task that is none."""
    join = await state(core, task_id)
    with core.sweeper.at(await core.monotonic_of(join.deadline_at)):
        task = await core.final(task_id)
    if join.state == "open":
        join = await state(core, task_id)
    return task, join, await rows(core, task_id)


async def state(core: Core, task_id: UUID) -> Join:
    join = await core.store.join(task_id)
    if join is None:
        await core.status(task_id)  # an unknown id is refused as such
        raise BadArgument.of("task_id", "must be that of a fan-out")
    return join


async def rows(core: Core, task_id: UUID) -> list[JoinResult]:
    """All candidates, in order."""
    return await carry_out_async(all_rows(task_id), asking(core.store))


async def results(core: Core, task_id: UUID) -> tuple[CandidateResult, ...]:
    """The answers so far."""
    join = await state(core, task_id)
    return gather.candidate_results(join, await rows(core, task_id))


def fan_out_result(found: Decided) -> FanOutResult:
    """Raises TaskCancelled, or TaskFailed, for a join that ended undecided."""
    task, join, members = found
    if task.status is Status.FAILED and join.outcome in (None, "cancelled"):
        raise TaskFailed.of(task.task_id, task.error)
    return gather.fan_out_result(join, members)


def scatter_gather_result(found: Decided, reducer: Reducer | None) -> ScatterGatherResult:
    """What was gathered; ``reducer`` is called here, on the caller's thread."""
    task, join, members = found
    then = None if task.kind == PLAIN_JOIN else task.kind
    return gather.scatter_gather_result(task, join, members, reducer, then)
