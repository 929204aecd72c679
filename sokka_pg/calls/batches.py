"""Creating tasks without end: which specs go together, and what is said if one fails.

No I/O: a store sends a batch, and has the next one prepared while the server is at work.
Most batches are of tasks that differ in their data alone; those go by
``create_tasks_like``, which costs the server three quarters of ``create_tasks``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sokka_pg.calls import arguments
from sokka_pg.calls.producers import TOGETHER, Alike, members_text
from sokka_pg.calls.statement import Call, Column, Statement, column
from sokka_pg.errors import BadArgument, DatabaseUnavailable, SokkaError
from sokka_pg.model import BatchesCreated, CreatedId
from sokka_pg.payload import DATA_LIMIT, encode, encode_members

BATCH = 4_000
"""A thousand to a commit are a tenth slower: what waits is the disk, and the server for us."""
BATCH_BYTES = 4 * 1024 * 1024
_FIRST_PART = 10
_PART_BYTES = 128 * 1024
_ONE_OF_A_KIND = frozenset({"task_id", "unique_key", "parent_task_id"})
_POSITION = re.compile(r"^specs\[\d+\]")

Created = list[CreatedId]
E = TypeVar("E", bound=Exception)
Each = Callable[[Created], object]


class Batches:
    """The specs of an iterable, as one call after the other.

    ``next_call`` is the batch to send, ``prepare`` what to do while the server works on
    it, ``answered`` takes its answer, ``failed`` makes its error one of all the specs.
    """

    def __init__(
        self,
        specs: Iterable[Mapping[str, Any]],
        batch_size: int = BATCH,
        each: Each | None = None,
        *,
        max_data_bytes: int = DATA_LIMIT,
    ) -> None:
        if isinstance(specs, str | bytes | Mapping) or not isinstance(specs, Iterable):
            raise BadArgument.of("specs", "must be an iterable of mappings", specs)
        self._size = int(arguments.integer(batch_size, "batch_size", 1, arguments.MOST_MEMBERS))
        self._each, self._max_data_bytes = each, max_data_bytes
        self._specs = iter(specs)
        self._part = _FIRST_PART
        self._taken = self._stored = self._created = 0
        self._ready: _Batch | None = None
        self._sent: _Batch | None = None
        self._untold: Created | None = None
        self._failure: Exception | None = None

    @property
    def total(self) -> BatchesCreated:
        """What is stored so far."""
        return BatchesCreated(self._created, self._stored - self._created)

    def prepare(self) -> Iterator[None]:
        """Tell of the batch before and get the next one ready, in steps of a fraction
        of a millisecond. Raises nothing: ``next_call`` does, in its turn."""
        try:
            self._tell()
            yield
            yield from self._filled()
        except Exception as error:  # raised by next_call
            self._failure = error

    def next_call(self) -> Call[Created | tuple[int, int]] | None:
        """The batch to send; None after the last. Raises what the specs or ``each``
        raised, when all that came before is stored."""
        self._sent, self._ready = self._ready, None
        if self._sent is not None:
            return self._sent.call(with_ids=self._each is not None)
        try:
            self._tell()
        except Exception as error:  # raised below, unless something failed before
            self._failure = self._failure or error
        if self._failure is not None:
            raise self._noted(self._failure)
        return None

    def answered(self, answer: Created | tuple[int, int]) -> None:
        """The batch that was sent is stored."""
        if isinstance(answer, list):
            self._untold = answer
            count, created = len(answer), sum(made.created for made in answer)
        else:
            count, created = answer
        self._stored += count
        self._created += created

    def failed(self, error: SokkaError) -> SokkaError:
        """The error of the batch that was sent, with positions among all specs; what is
        stored has been told of."""
        self._tell()
        position = error.detail.get("position")
        if not isinstance(position, int):
            return self._noted(error)
        position += self._stored
        message = _POSITION.sub(f"specs[{position}]", error.message)
        return self._noted(type(error)(message, {**error.detail, "position": position}))

    def _tell(self) -> None:
        untold, self._untold = self._untold, None
        each, self._each = self._each, None
        if untold is not None and each is not None:
            each(untold)
        # one that raised is not called again
        self._each = each

    def _filled(self) -> Iterator[None]:
        batch: _Batch | None = None
        while batch is None or not batch.is_full(self._size):
            room = self._size - (batch.count if batch else 0)
            part = self._next_part(min(self._part, room))
            if not part:
                break
            batch = batch or _Batch(self._taken - len(part) + 1, self._max_data_bytes)
            before = batch.bytes
            batch.add(part)
            each = max(1, (batch.bytes - before) // len(part))
            self._part = min(TOGETHER, max(1, _PART_BYTES // each))
            yield
        self._ready = batch

    def _next_part(self, count: int) -> list[Any]:
        """So many specs, or what is left. What was given before an error still goes."""
        part: list[Any] = []
        if self._failure is not None:
            return part
        try:
            # one by one: what came before an error is kept
            for spec in islice(self._specs, count):
                part.append(spec)
        except Exception as error:  # raised by next_call
            self._failure = error
        self._taken += len(part)
        return part

    def _noted(self, error: E) -> E:
        stored = self._stored
        said = f"the first {stored} specs are stored" if stored else "none of the specs is stored"
        if isinstance(error, SokkaError):
            error.detail["stored"] = stored
            if (
                isinstance(error, DatabaseUnavailable)
                and error.detail.get("sent") is not False
                and self._sent is not None
            ):
                last = stored + self._sent.count
                error.detail["unknown"] = [stored + 1, last]
                said += f"; whether those from {stored + 1} to {last} are is not known"
        error.add_note(said)
        return error


class _Batch:
    """Some specs in a row, as texts."""

    def __init__(self, first: int, max_data_bytes: int) -> None:
        self._first, self._max_data_bytes = first, max_data_bytes
        self._specs: list[Any] = []
        self._texts: list[str] = []
        self._alike: Alike | None = None
        self._around: str | None = None
        self.bytes = 0

    @property
    def count(self) -> int:
        return len(self._specs)

    def is_full(self, size: int) -> bool:
        return self.count >= size or self.bytes >= BATCH_BYTES

    def add(self, specs: Sequence[Any]) -> None:
        """Raises BadArgument with the position among all specs."""
        text = self._data_text(specs)
        if text is None:
            self._mix()
            first = self._first + self.count
            text = members_text(specs, first, self._max_data_bytes)
        self._specs += specs
        self._texts.append(text)
        self.bytes += len(text)

    def call(self, *, with_ids: bool) -> Call[Any]:
        text = f"[{','.join(self._texts)}]"
        decode: Any = _ids if with_ids else _counts
        if self._around is not None:
            statement = _LIKE if with_ids else _LIKE_COUNTED
            return Call(statement, {"spec": self._around, "data": text}, decode)
        statement = _MIXED if with_ids else _MIXED_COUNTED
        return Call(statement, {"specs": text}, decode)

    def _data_text(self, specs: Sequence[Any]) -> str | None:
        """Their data alone, if that is all in which the batch differs."""
        if self._specs and self._around is None:
            return None
        alike = Alike.found(specs, self._alike)
        if alike is None or not _ONE_OF_A_KIND.isdisjoint(alike.options):
            return None
        text = encode_members(alike.data, self._max_data_bytes)
        if text is None:
            text = self._long_way(alike.data)
        if text is not None and self._around is None:
            options = alike.options_sent(self._max_data_bytes)
            if options is None:
                return None
            self._alike, self._around = alike, encode(options, "specs")
        return text

    def _long_way(self, data: Sequence[object]) -> str | None:
        try:
            return ",".join([encode(each, "data", self._max_data_bytes) for each in data])
        except BadArgument:
            return None  # members_text tells which one

    def _mix(self) -> None:
        """From here on whole specs: this batch differs in more than data."""
        if self._around is not None:
            self._around = None
            self._texts = [members_text(self._specs, self._first, self._max_data_bytes)]
            self.bytes = len(self._texts[0])


def _ids(rows: list[Any]) -> Created:
    return [CreatedId(*row) for row in rows]


def _counts(rows: list[Any]) -> tuple[int, int]:
    ((count, created),) = rows
    return count, created


_IDS = (column("task_id"), column("created"))
_COUNTS = (Column("count(*)"), Column("count(*) filter (where r.created)"))
_SPECS = (("specs", "jsonb"),)
_SPEC_AND_DATA = (("spec", "jsonb"), ("data", "jsonb"))
_MIXED = Statement("create_tasks", _IDS, _SPECS, suffix="order by r.ord")
_MIXED_COUNTED = Statement("create_tasks", _COUNTS, _SPECS)
_LIKE = Statement("create_tasks_like", _IDS, _SPEC_AND_DATA, suffix="order by r.ord")
_LIKE_COUNTED = Statement("create_tasks_like", _COUNTS, _SPEC_AND_DATA)
