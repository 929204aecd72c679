"""The context of a handler that is a plain function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import UUID

from sokka_pg.context.common import AnyContext
from sokka_pg.context.plans import Ask, Invoke, Pause, Plan, Step, carry_out
from sokka_pg.context.timing import LATER
from sokka_pg.gather import (
    CandidateResult,
    FanOutRequest,
    FanOutResult,
    Request,
    ScatterGatherRequest,
    ScatterGatherResult,
)
from sokka_pg.model import CheckpointSaved, Json, LeasedTask

if TYPE_CHECKING:
    from psycopg import Connection

    from sokka_pg.fence import FencedTransaction
    from sokka_pg.store import TaskStore

T = TypeVar("T")


class SyncTaskContext(AnyContext):
    """The context of a handler that is a plain function, in a thread or a process."""

    __sokka_context__: ClassVar[str] = "sync"

    def __init__(
        self, task: LeasedTask, store: TaskStore,
        on_lost: Callable[[int, str], None] | None = None,
    ) -> None:
        super().__init__(task, on_lost)
        self._store = store
        self._emitting = threading.Lock()

    def progress(self, progress: Json, *, connection: Any = None) -> None:
        """Like ``TaskContext.progress``."""
        self._carry_out(self._report(progress, connection))

    def checkpoint(self, checkpoint: Json, *, connection: Any = None) -> CheckpointSaved:
        """Like ``TaskContext.checkpoint``."""
        with self._watching():
            saved = self._store.save_checkpoint(
                self.lease, checkpoint=checkpoint, connection=connection
            )
        self.last_checkpoint = checkpoint
        return saved

    def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Json:
        """Like ``TaskContext.step``, with a plain function."""
        return self._carry_out(self._steps.step(name, function, args, kwargs))

    def emit(self, item: Json) -> int:
        """Like ``TaskContext.emit``."""
        return self.emit_many((item,))

    def emit_many(self, items: Iterable[Json]) -> int:
        """Like ``TaskContext.emit_many``."""
        with self._emitting:
            return self._carry_out(self._streaming().emit(items))

    def stream_position(self) -> int:
        """Like ``TaskContext.stream_position``."""
        return self._carry_out(self._streaming().position())

    def fan_out(self, name: str, request: FanOutRequest) -> FanOutResult:
        """Like ``TaskContext.fan_out``."""
        return self._carry_out(self._fans.fan_out(name, request))

    def scatter_gather(self, name: str, request: ScatterGatherRequest) -> ScatterGatherResult:
        """Like ``TaskContext.scatter_gather``."""
        return self._carry_out(self._fans.scatter_gather(name, request))

    def start_fan_out(self, name: str, request: Request) -> UUID:
        """Like ``TaskContext.start_fan_out``."""
        return self._carry_out(self._fans.start(name, request))

    def join_results(self) -> tuple[CandidateResult, ...]:
        """Like ``TaskContext.join_results``."""
        return self._carry_out(self._fans.own_results())

    @contextmanager
    def transaction(
        self, *, terminate: bool = False
    ) -> Iterator[FencedTransaction[Connection[Any]]]:
        """Like ``TaskContext.transaction``."""
        if terminate:
            self.finish()
        self._enter()
        try:
            with self._watching(), self._store.transaction(
                self.lease, terminate=terminate
            ) as block:
                yield block
            self.terminated = terminate
        finally:
            self._leave()

    def wait_cancelled(self, timeout_s: float | None = None) -> bool:
        """Wait until the handler is to stop, or ``timeout_s``; whether it is."""
        return self.stop_requested.wait(timeout_s)

    def finish(self) -> None:
        """Write what progress was held back. Called by the worker at the end."""
        self._carry_out(self._finish())

    def _carry_out(self, plan: Plan[T]) -> T:
        return carry_out(plan, self._do)

    def _do(self, step: Step) -> Any:
        if isinstance(step, Ask):
            with self._watching():
                return getattr(self._store, step.verb)(*step.arguments, **step.options)
        if isinstance(step, Invoke):
            return step.function(*step.arguments, **step.options)
        if isinstance(step, Pause):
            return self._streaming().news.wait(step.seconds)
        with suppress(TimeoutError):
            step.flight.result(step.seconds)
        return None

    def _arm(self, delay_s: float) -> None:
        LATER.call(delay_s, self._flush)

    def _flush(self) -> None:
        progress = self._reporting()
        if progress.wants_flush:
            self._carry_out(progress.flush())
