"""``exchange_work`` as a worker sends it, many times a second.

What it shows was handed out by the database or made here, so it is not checked again.
Leases stay as they came over the wire until somebody wants to know: a worker needs a
few words of a task before it sends its next call; what a handler is given (JSON,
durations, the model's class) is read after that, while the database works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import UUID

from sokka_pg.calls import arguments
from sokka_pg.calls.statement import (
    Call,
    Column,
    Statement,
    array_text,
    column,
    columns_of,
    plain_array_text,
)
from sokka_pg.calls.workers import SETTLE, WANTED, wanted
from sokka_pg.durations import Duration
from sokka_pg.model import Json, LeasedTask
from sokka_pg.payload import decode


class Grant(NamedTuple):
    """The columns of a leased task, in the order of ``LeasedTask``."""

    task_id: UUID
    task_group_id: UUID
    topic: str
    sub_topic: str
    kind: str
    data_text: str | None
    headers_text: str | None
    pid: str
    token: int
    lease_expires_at: datetime
    attempt: int
    failures: int
    max_attempts: int
    timeout_s: float | None
    checkpoint_text: str | None
    record_ver: int
    created_at: datetime
    cancel_requested_at: datetime | None
    priority: int
    losses: int
    leased_at: datetime
    expires_at: datetime | None
    parent_task_id: UUID | None
    candidate: int | None

    @property
    def size(self) -> int:
        """The bytes of its payloads, about."""
        return len(self.data_text or "") + len(self.checkpoint_text or "")

    def read(self) -> LeasedTask:
        """The task as a handler is given it."""
        made: Any = _Open(*self)
        made.data = _json(self.data_text)
        made.headers = _json(self.headers_text)
        made.checkpoint = _json(self.checkpoint_text)
        if self.timeout_s is not None:
            made.timeout = timedelta(seconds=float(self.timeout_s))
        # A frozen class sets each field through object.__setattr__: six times slower.
        made.__class__ = LeasedTask
        return cast(LeasedTask, made)


_Open: Any = make_dataclass(
    "_Open", [(field.name, object) for field in fields(LeasedTask)], slots=True, eq=False
)


def _grant_columns(inside: str = "") -> tuple[Column, ...]:
    """The columns of a grant: those of a leased task, with JSON and durations as they come."""
    raw = {"data", "headers", "checkpoint", "timeout"}
    named = zip(fields(LeasedTask), columns_of(LeasedTask, inside=inside), strict=True)
    return tuple(
        Column(found.expression) if field.name in raw else found for field, found in named
    )


def _json(text: str | None) -> Json:
    return None if text is None else decode(text)


Verdict: TypeAlias = tuple[str, dict[str, Json] | None]


@dataclass(slots=True)
class Exchanged:
    """The answer to ``exchange``: a verdict for each settlement, with its detail, and the
    leases in the order of the queue."""

    verdicts: list[Verdict]
    grants: list[Grant]


def exchange(
    pid: str,
    leases: Sequence[tuple[UUID, int]],
    verbs: Sequence[str],
    args: Sequence[str | None],
    to_reserve: Mapping[str, str | None],
    *,
    older: bool = False,
) -> Call[Exchanged]:
    """Settle these ``leases``, each by its verb and JSON text, and reserve. ``older``: by
    a function that schemas before revision 0005 have."""
    count = len(leases)
    # null stands for none at all, and spares the database a look at each
    some = count or older
    params = {
        "pid": pid,
        "task_ids": plain_array_text([task_id.hex for task_id, _ in leases]) if some else None,
        "tokens": plain_array_text([token for _, token in leases]) if some else None,
        "verbs": plain_array_text(verbs) if some else None,
        "args": array_text(args) if any(args) else None,
        **to_reserve,
    }
    # Ids and times cost a third of what they cost as text, there and here.
    if older:
        return Call(
            _SETTLE_AND_RESERVE, params, lambda rows: _exchanged(rows, [_BUSY] * count), binary=True
        )
    return Call(_EXCHANGE, params, lambda rows: _exchanged_briefly(rows, count), binary=True)


def reserving(
    topics: Sequence[str], max_tasks: int, lease: Duration | None, limits: Sequence[int]
) -> dict[str, str | None]:
    """What ``exchange`` is to reserve. No topics: nothing. Raises BadArgument."""
    return wanted(arguments.topics(topics) if topics else [], max_tasks, lease, limits)


_VERDICT = (column("ord"), column("verdict"), column("detail"))
_EXCHANGE = Statement("exchange_work", (*_VERDICT, *_grant_columns()), (*SETTLE, *WANTED))
_SETTLE_AND_RESERVE = Statement(
    "settle_and_reserve", (*_VERDICT, *_grant_columns("lease")), (*SETTLE, *WANTED)
)
_RESERVED = "reserved"
_OK: Verdict = ("ok", None)
_BUSY: Verdict = ("55P03", None)
_by_token = attrgetter("token")


def _exchanged_briefly(rows: Sequence[Sequence[Any]], count: int) -> Exchanged:
    # The first row counts those that were accepted; the others are told one by one. One of
    # which nothing was said is as good as busy.
    if not count:
        return _exchanged(rows, [])
    accepted = rows[0][0]
    told = sum(verdict != _RESERVED for _, verdict, *_ in rows[1 : 1 + count - accepted])
    found = _OK if accepted + told == count else _BUSY
    return _exchanged(rows[1:], [found] * count)


def _exchanged(rows: Sequence[Sequence[Any]], verdicts: list[Verdict]) -> Exchanged:
    # Verdicts come first, in no order; these say what holds where none comes.
    told = 0
    for told, (place, verdict, detail, *_) in enumerate(rows[: len(verdicts)], start=1):
        if verdict == _RESERVED:
            told -= 1
            break
        verdicts[place - 1] = (verdict, detail)
    grants = [Grant._make(row[3:]) for row in rows[told:]]
    # New leases come in no order; their tokens were drawn in the queue's.
    grants.sort(key=_by_token)
    return Exchanged(verdicts, grants)
