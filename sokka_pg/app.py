"""The application: where tasks are declared, enqueued and worked off.

    app = Sokka("postgresql://localhost/shop")

    @app.task(topic="mail", retry=5)
    async def send(to: str, subject: str) -> None: ...

    send.enqueue("ann@example.org", subject="hello")          # or await send.enqueue_async(...)
    send.configure(priority=0, connection=session).enqueue("bob@example.org", subject="now")

    app.run_worker("mail:20")
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    cast,
    overload,
)
from uuid import UUID

from typing_extensions import Unpack

from sokka_pg import retry as retries
from sokka_pg import settings
from sokka_pg.calls import arguments
from sokka_pg.connections import ConnectionOptions
from sokka_pg.context import SyncTaskContext, TaskContext
from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.errors import UsageError
from sokka_pg.events import EventFeed, Observer, enqueuing
from sokka_pg.model import BatchesCreated, CreatedId, CreatedTask, RetryPolicy
from sokka_pg.payload import DATA_LIMIT
from sokka_pg.registry import PayloadReader, Registry, TaskSpec, mode_of
from sokka_pg.runner import Stores
from sokka_pg.schema import check_name
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from sokka_pg.worker import LoopFactory, Worker, WorkerOptions, spare_collector

if TYPE_CHECKING:
    from sokka_pg.scheduler import (
        AsyncKeptLease,
        AsyncRuntime,
        KeptLease,
        Periodic,
        PeriodicOptions,
        PostgresLocker,
        Runtime,
        ScheduleLoop,
        SyncReport,
    )
    from sokka_pg.schedules import Schedule
    from sokka_pg.workload import AsyncWorkloadScheduler, WorkloadScheduler
    from sokka_pg.workload.shell import WorkloadOptions

LEFT_AFTER_S = 1.0
LOCK_TTL = timedelta(seconds=30)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
EachBatch = Callable[[list[CreatedId]], object]


class EnqueueOptions(TypedDict, total=False):
    """What ``configure`` takes; all optional."""

    connection: Any
    """Enqueue in this transaction: of psycopg, or of SQLAlchemy."""
    topic: str
    sub_topic: str
    task_id: UUID | str
    task_group_id: UUID | str
    priority: int
    run_at: datetime
    max_attempts: int
    retry: RetryPolicy | Mapping[str, Any] | int
    timeout: Duration
    expires_at: datetime
    unique_key: str
    headers: Mapping[str, str]
    max_losses: int
    on_conflict: str


class Bound(Generic[P, R]):
    """A task with options for the next enqueue."""

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self._task, self._options = task, options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> CreatedTask:
        """Create the task; committed on return, unless on a ``connection`` of yours."""
        return self._task._enqueue(self._options, args, kwargs)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> CreatedTask:
        """``enqueue`` for an event loop."""
        return await self._task._enqueue_async(self._options, args, kwargs)

    def enqueue_many(
        self, arguments: Iterable[Any], *, each: EachBatch | None = None
    ) -> BatchesCreated:
        """As ``Task.enqueue_many``, all with these options."""
        return self._task._enqueue_many(self._options, arguments, each)

    async def enqueue_many_async(
        self, arguments: Iterable[Any], *, each: EachBatch | None = None
    ) -> BatchesCreated:
        """``enqueue_many`` for an event loop."""
        return await self._task._enqueue_many_async(self._options, arguments, each)

    def configure(self, **options: Unpack[EnqueueOptions]) -> Bound[P, R]:
        """These options, and more."""
        return Bound(self._task, {**self._options, **options})


class Task(Generic[P, R]):
    """A declared task. Calling it calls the handler, here and now."""

    def __init__(self, app: Sokka, spec: TaskSpec, handler: Callable[..., R]) -> None:
        self.app, self.spec = app, spec
        self._handler = handler
        update_wrapper(cast(Any, self), handler)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self._handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.spec.kind!r} of topic {self.spec.topic!r}>"

    @property
    def kind(self) -> str:
        return self.spec.kind

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> CreatedTask:
        """Create a task with these arguments; committed on return. Raises BadArgument."""
        return self._enqueue({}, args, kwargs)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> CreatedTask:
        """``enqueue`` for an event loop."""
        return await self._enqueue_async({}, args, kwargs)

    def enqueue_many(
        self, arguments: Iterable[Any], *, each: EachBatch | None = None
    ) -> BatchesCreated:
        """Create a task for each member: a mapping is its keyword arguments, a tuple its
        positional ones, anything else its only argument. Any number of them, from a
        generator for example: a batch of 4,000 is one commit, and the next one is taken
        while the server works on it. ``each`` is called with the ids of every batch.

        When a member is refused (BadArgument), those before it are stored; a note on the
        error says how many. See ``TaskStore.create_tasks_in_batches``.
        """
        return self._enqueue_many({}, arguments, each)

    async def enqueue_many_async(
        self, arguments: Iterable[Any], *, each: EachBatch | None = None
    ) -> BatchesCreated:
        """``enqueue_many`` for an event loop. Other tasks have their turn in between."""
        return await self._enqueue_many_async({}, arguments, each)

    def configure(self, **options: Unpack[EnqueueOptions]) -> Bound[P, R]:
        """The task with options: when, how urgent, in whose transaction…"""
        return Bound(self, options)

    def periodic(
        self,
        schedule: Schedule | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[PeriodicOptions],
    ) -> Periodic:
        """Enqueue this task by the clock, with these arguments: ``@every 5m``, ``@daily``,
        ``0 30 9 * * 1-5``.

        Kept in the database under ``name`` (default: the task's kind) from when a worker
        or scheduler of the app starts, or ``sync_schedules`` is called. Raises
        BadArgument, and UsageError for a name that this app declared before.
        """
        from sokka_pg.scheduler import Periodic

        topic, rest = self._options({})
        data = self.spec.payload.write(tuple(args), kwargs or {})
        task = {"topic": topic, "data": data, **rest}
        return self.app._declare(Periodic.of(schedule, task, self.spec.kind, options))

    def connect_to(self, database_url: str, schema: str) -> None:
        """Point the app elsewhere: a worker's child process follows its parent."""
        self.app.connect_to(database_url, schema)

    def _enqueue(
        self, options: EnqueueOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CreatedTask:
        topic, rest = self._options(options)
        data = self.spec.payload.write(args, kwargs)
        with self._observed(topic, rest):
            return self.app.store.create_task(topic, data, **rest)

    async def _enqueue_async(
        self, options: EnqueueOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CreatedTask:
        topic, rest = self._options(options)
        data = self.spec.payload.write(args, kwargs)
        with self._observed(topic, rest):
            return await self.app.async_store.create_task(topic, data, **rest)

    def _enqueue_many(
        self, options: EnqueueOptions, members: Iterable[Any], each: EachBatch | None
    ) -> BatchesCreated:
        topic, rest, connection = self._shared(options)
        with self._observed(topic, rest):
            return self.app.store.create_tasks_in_batches(
                self._specs({"topic": topic, **rest}, members), each=each, connection=connection
            )

    async def _enqueue_many_async(
        self, options: EnqueueOptions, members: Iterable[Any], each: EachBatch | None
    ) -> BatchesCreated:
        topic, rest, connection = self._shared(options)
        with self._observed(topic, rest):
            return await self.app.async_store.create_tasks_in_batches(
                self._specs({"topic": topic, **rest}, members), each=each, connection=connection
            )

    def _shared(self, options: EnqueueOptions) -> tuple[str, dict[str, Any], Any]:
        topic, rest = self._options(options)
        for name in ("task_id", "unique_key"):
            if name in rest:
                raise UsageError(f"{self.spec.kind}: {name} is of one task, not of many")
        return topic, rest, rest.pop("connection", None)

    def _specs(self, shared: dict[str, Any], members: Iterable[Any]) -> Iterator[dict[str, Any]]:
        write = self.spec.payload.write
        for member in members:
            if isinstance(member, Mapping):
                data = write((), member)
            else:
                data = write(member if isinstance(member, tuple) else (member,), {})
            yield {**shared, "data": data}

    @contextmanager
    def _observed(self, topic: str, options: dict[str, Any]) -> Iterator[None]:
        """Around an enqueue: observers may add headers, such as the trace that it is in."""
        given = options.get("headers")
        with enqueuing(self.app.observers, topic, self.spec.kind, given) as headers:
            if headers is not given:
                options["headers"] = headers
            yield

    def _options(self, options: EnqueueOptions) -> tuple[str, dict[str, Any]]:
        unknown = options.keys() - EnqueueOptions.__annotations__.keys()
        if unknown:
            raise UsageError(f"{self.spec.kind}: unknown option {min(unknown)!r}")
        spec = self.spec
        own: dict[str, Any] = {
            "kind": spec.kind, "retry": spec.retry, "timeout": spec.timeout,
            "priority": spec.priority, "max_losses": spec.max_losses,
        }
        found = {key: value for key, value in own.items() if value is not None}
        found |= dict(options)
        return found.pop("topic", spec.topic), found


class Sokka:
    """A queue in one schema of one database, and the handlers of its tasks.

    Without ``database_url`` the environment names the database when it is first
    needed: ``SOKKA_DATABASE_URL``, ``DATABASE_URL``, then ``PG*``. Nothing is
    connected before; pools are opened in the process that uses them.
    ``max_data_bytes`` is the longest JSON text of a payload, as the installation's
    setting of that name allows; 1 MiB unless both say otherwise. ``name`` tells the
    schedules of this app from those of others in the same database.
    """

    def __init__(
        self,
        database_url: str | None = None,
        schema: str | None = None,
        *,
        pid: str | None = None,
        connections: ConnectionOptions | None = None,
        observers: Iterable[Observer] = (),
        max_data_bytes: int = DATA_LIMIT,
        name: str | None = None,
    ) -> None:
        self._given_url = database_url
        self.name = None if name is None else arguments.name(name, "name")
        self._periodic: dict[str, Periodic] = {}
        self._max_data_bytes = max_data_bytes
        self._schema = check_name(schema) if schema is not None else None
        self._pid, self._connections = pid, connections
        self.observers = list(observers)
        self.registry = Registry()
        self._store: PgTaskStore | None = None
        self._async_store: AsyncPgTaskStore | None = None
        self._locker: PostgresLocker | None = None

    @property
    def database_url(self) -> str:
        """The database; ``UsageError`` if nothing names one."""
        target = settings.lookup(self._given_url)
        if target is None:
            raise UsageError(
                "no database named: give Sokka a URL, or set SOKKA_DATABASE_URL"
            )
        return target.conninfo

    @property
    def names_database(self) -> bool:
        """Whether this app or the environment says which database."""
        return settings.lookup(self._given_url) is not None

    @property
    def schema(self) -> str:
        """The schema of the queue: as given, else ``SOKKA_SCHEMA``, else ``sokka``."""
        return self._schema or settings.schema_name()

    @property
    def store(self) -> PgTaskStore:
        """The queue's verbs, for callers without an event loop."""
        if self._store is None:
            self._store = PgTaskStore(
                self.database_url, self.schema, options=self._connections,
                max_data_bytes=self._max_data_bytes,
            )
        return self._store

    @property
    def async_store(self) -> AsyncPgTaskStore:
        """The queue's verbs, awaited."""
        if self._async_store is None:
            self._async_store = AsyncPgTaskStore(
                self.database_url, self.schema, options=self._connections,
                max_data_bytes=self._max_data_bytes,
            )
        return self._async_store

    @property
    def pid(self) -> str | None:
        """The identity that its workers were given, if any."""
        return self._pid

    @property
    def connections(self) -> ConnectionOptions:
        """How connections to the database are made."""
        return self._connections or ConnectionOptions()

    @property
    def locker(self) -> PostgresLocker:
        """The locks of this app, for a Scheduler as well. It has connections of its own,
        so that a handler that uses up the store's keeps nobody from renewing."""
        from sokka_pg.scheduler import PostgresLocker

        if self._locker is None:
            self._locker = PostgresLocker(
                self.database_url, schema=self.schema, options=self._connections, owner=self._pid
            )
        return self._locker

    def lock(
        self, key: str, *, ttl: Duration = LOCK_TTL, wait: Duration = 0
    ) -> AbstractContextManager[KeptLease]:
        """Hold the lock of ``key`` for a block: ``with app.lock("prices") as lease: …``.

        One holder at a time, over all processes. A thread renews it; were this process
        to die, it would be free after ``ttl`` (300 ms to 1 year). ``wait``: how long to
        wait for another holder, at most. Raises LockHeld when that was in vain, and
        LeaseLost at the end of a block that lost the lock on the way. What is written
        after ``lease.assert_held(connection)``, in the same transaction, is written by
        the holder or not at all. Raises BadArgument, DatabaseUnavailable.
        """
        from sokka_pg.scheduler.locks import held

        return held(self.locker, key, ttl, wait)

    def lock_async(
        self, key: str, *, ttl: Duration = LOCK_TTL, wait: Duration = 0
    ) -> AbstractAsyncContextManager[AsyncKeptLease]:
        """``lock`` for event loops: a block that loses its lock is cancelled, and raises
        LeaseLost. A thread renews, so that a busy loop loses nothing."""
        from sokka_pg.scheduler.locks import held_async

        return held_async(self.locker, self.async_store, key, ttl, wait)

    def singleton(
        self, key: str, *, ttl: Duration = LOCK_TTL, wait: Duration = 0, skip: bool = False
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: one call at a time, over all processes; plain or async functions.

        A call holds the lock of ``key`` (see ``lock``), which is ``held_lease()`` within.
        ``skip``: a call that meets another one returns None instead of raising LockHeld.
        """
        from sokka_pg.scheduler.locks import singleton

        return singleton(
            lambda: self.lock(key, ttl=ttl, wait=wait),
            lambda: self.lock_async(key, ttl=ttl, wait=wait), skip,
        )

    def connect_to(self, database_url: str, schema: str | None = None) -> None:
        """Use this database from now on; stores that were handed out stay as they are."""
        if (database_url, schema or self._schema) == (self._given_url, self._schema):
            return
        self._given_url = database_url
        self._schema = check_name(schema) if schema is not None else self._schema
        self._store = self._async_store = self._locker = None

    def connect_through_pooler(self) -> None:
        """Expect a transaction-mode pooler from now on, as ``ConnectionOptions(pooler=True)``."""
        self._connections = replace(self._connections or ConnectionOptions(), pooler=True)
        self._store = self._async_store = self._locker = None

    @overload
    def task(self, handler: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, handler: Callable[Concatenate[SyncTaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, handler: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        handler: None = None,
        /,
        *,
        kind: str | None = None,
        topic: str = "default",
        process: bool = False,
        retry: RetryPolicy | Mapping[str, Any] | int | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        max_losses: int | None = None,
    ) -> Declare: ...

    def task(
        self,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        kind: str | None = None,
        topic: str = "default",
        process: bool = False,
        retry: RetryPolicy | Mapping[str, Any] | int | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        max_losses: int | None = None,
    ) -> Any:
        """Declare a task: ``@app.task`` or ``@app.task(topic=…)``.

        ``kind``: its name in the database, default the function's; ``process``:
        run it in a process that can be killed; ``retry``: how errors are tried
        again (a number is max_attempts; default: not at all); ``timeout``: the
        longest one attempt may take. The rest are defaults for its enqueues.
        Raises UsageError or BadArgument for a declaration that cannot work.
        """

        declare = Declare(
            self, kind, topic, process, retries.policy_from(retry),
            None if timeout is None else _positive(timeout), priority, max_losses,
        )
        if handler is None:
            return declare
        return declare.declared(handler, sys._getframe(1).f_locals)

    def periodic(
        self,
        schedule: Schedule | str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        kind: str | None = None,
        topic: str = "default",
        process: bool = False,
        retry: RetryPolicy | Mapping[str, Any] | int | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        max_losses: int | None = None,
        **options: Unpack[PeriodicOptions],
    ) -> DeclarePeriodic:
        """Declare a task that is enqueued by the clock: ``@app.periodic("@every 5m")``.

        What a declaration says, see ``task``; when and how, ``Task.periodic``.
        """
        declare = Declare(
            self, kind, topic, process, retries.policy_from(retry),
            None if timeout is None else _positive(timeout), priority, max_losses,
        )
        return DeclarePeriodic(declare, schedule, tuple(args), kwargs or {}, options)

    @property
    def periodic_tasks(self) -> tuple[Periodic, ...]:
        """What ``periodic`` declared."""
        return tuple(self._periodic.values())

    def sync_schedules(self, *, prune: bool = False) -> SyncReport:
        """Put the periodic tasks of this app into the database; a worker does so at its
        start. What is there already stays as it is, with its next tick; what was changed
        begins anew. ``prune``: delete what this app declared once, and does not now.
        Schedules of others are left alone. Raises UsageError for ``prune`` in an app
        without a ``name``.
        """
        from sokka_pg.context.plans import asking, carry_out
        from sokka_pg.scheduler.periodic import synced

        plan = synced(self.periodic_tasks, self._source(prune), prune)
        return carry_out(plan, asking(self.store))

    async def sync_schedules_async(self, *, prune: bool = False) -> SyncReport:
        """``sync_schedules`` for an event loop."""
        from sokka_pg.context.plans import asking, carry_out_async
        from sokka_pg.scheduler.periodic import synced

        plan = synced(self.periodic_tasks, self._source(prune), prune)
        return await carry_out_async(plan, asking(self.async_store))

    @property
    def runtime(self) -> Runtime:
        """Managed jobs in this app's database; their handlers run in its workers."""
        from sokka_pg.scheduler import Runtime

        return Runtime(self.store, self.registry)

    @property
    def runtime_async(self) -> AsyncRuntime:
        """``runtime`` for event loops."""
        from sokka_pg.scheduler import AsyncRuntime

        return AsyncRuntime(self.async_store, self.registry)

    def schedule_loop(
        self, *, observers: Iterable[Observer] = (), feed: EventFeed | None = None
    ) -> ScheduleLoop:
        """What puts this app's schedules and fires all that are due; workers have one.
        It has a connection of its own."""
        from sokka_pg.scheduler import ScheduleLoop

        store = AsyncPgTaskStore(
            self.database_url, self.schema, max_data_bytes=self._max_data_bytes,
            options=replace(self.connections, max_size=1),
        )
        return ScheduleLoop(
            store, self.periodic_tasks, source=self._source(), feed=feed,
            observers=[*self.observers, *observers], owns_store=True,
        )

    def run_scheduler(self, *, observers: Iterable[Observer] = ()) -> None:
        """Fire schedules until SIGTERM or SIGINT, without working off any task. In the
        main thread, like ``run_worker``."""
        self.run(self.schedule_loop(observers=observers))

    def _declare(self, periodic: Periodic) -> Periodic:
        if periodic.name in self._periodic:
            raise UsageError(f"a periodic task {periodic.name!r} is declared; give it a name")
        self._periodic[periodic.name] = periodic
        return periodic

    def _source(self, own_name: bool = False) -> str:
        if own_name and self.name is None:
            # it would delete what other apps without a name have declared
            raise UsageError("prune needs an app with a name: Sokka(name=...)")
        return f"app:{self.name or 'unnamed'}"

    async def _fire_beside(self, feed: EventFeed) -> None:
        await self.schedule_loop(feed=feed).run()

    def workload(self, **options: Unpack[WorkloadOptions]) -> WorkloadScheduler:
        """A scheduler on this queue: submit, lease, stream, fan out. Close it."""
        from sokka_pg.workload import WorkloadScheduler

        return WorkloadScheduler(self.database_url, self.schema, **self._for_workload(options))

    def workload_async(self, **options: Unpack[WorkloadOptions]) -> AsyncWorkloadScheduler:
        """``workload`` for event loops."""
        from sokka_pg.workload import AsyncWorkloadScheduler

        return AsyncWorkloadScheduler(
            self.database_url, self.schema, **self._for_workload(options)
        )

    def _for_workload(self, given: WorkloadOptions) -> WorkloadOptions:
        from sokka_pg.workload import Limits

        own: WorkloadOptions = {
            "connections": self._connections,
            "limits": Limits(payload_bytes=self._max_data_bytes),
        }
        observers = [*self.observers, *given.get("observers", ())]
        return {**own, **given, "observers": observers}

    def worker(
        self,
        topics: str | Sequence[str] | Mapping[str, int] | None = None,
        *,
        pid: str | None = None,
        options: WorkerOptions | None = None,
        observers: Iterable[Observer] = (),
    ) -> Worker:
        """A worker for these topics (default: those that the tasks name)."""
        chosen = topics if topics is not None else self.registry.topics
        if not self.registry:
            raise UsageError("this app declares no task: nothing for a worker to run")
        return Worker(
            self.registry, Stores(self.store, self.async_store), self.database_url, self.schema,
            topics=chosen, pid=pid or self._pid, options=options,
            connections=self._connections, observers=[*self.observers, *observers],
            beside=self._fire_beside if (options or WorkerOptions()).schedules else None,
        )

    def run_worker(
        self,
        topics: str | Sequence[str] | Mapping[str, int] | None = None,
        *,
        pid: str | None = None,
        options: WorkerOptions | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """Run a worker until SIGTERM or SIGINT: the first lets handlers end within
        the grace period, the second stops them now. In the main thread: only
        there does Python take signals. The process is taken to be the worker's own:
        what was imported is kept from the garbage collector, which looks less often."""
        self.run(self.worker(topics, pid=pid, options=options, observers=observers))

    def run(
        self, worker: Worker | ScheduleLoop, *, loop_factory: LoopFactory | None = None
    ) -> None:
        """``run_worker`` for a worker or a loop that was made before, on asyncio's event
        loop or that of ``loop_factory`` (``uvloop.new_event_loop``)."""
        loop = (loop_factory or asyncio.new_event_loop)()
        if isinstance(worker, Worker):
            spare_collector()
        try:
            loop.run_until_complete(self._until_signalled(worker))
            loop.run_until_complete(_ended_or_left(LEFT_AFTER_S))
        finally:
            loop.close()

    async def _until_signalled(self, worker: Worker | ScheduleLoop) -> None:
        loop = asyncio.get_running_loop()
        asked = 0

        def on_signal() -> None:
            nonlocal asked
            asked += 1
            worker.stop(now=asked > 1)

        if os.name == "posix":
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, on_signal)
        try:
            await worker.run()
        finally:
            if self._async_store is not None:
                await self._async_store.close()


@dataclass(frozen=True, slots=True)
class Declare:
    """What ``@app.task(...)`` gives: a decorator that keeps the handler's types."""

    app: Sokka
    kind: str | None
    topic: str
    process: bool
    retry: RetryPolicy | None
    timeout: timedelta | None
    priority: int | None
    max_losses: int | None

    @overload
    def __call__(self, handler: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[SyncTaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Any:
        return self.declared(handler, sys._getframe(1).f_locals)

    def declared(
        self, handler: Callable[..., Any], local_names: Mapping[str, Any]
    ) -> Task[Any, Any]:
        """The task; ``local_names`` are those that type hints may use."""
        mode = mode_of(handler, self.process)
        spec = TaskSpec(
            kind=arguments.name(self.kind or handler.__name__, "kind"),
            topic=arguments.name(self.topic, "topic"),
            handler=handler, mode=mode, payload=PayloadReader(handler, mode, local_names),
            retry=self.retry, timeout=self.timeout,
            priority=self.priority, max_losses=self.max_losses,
        )
        return Task(self.app, self.app.registry.add(spec), handler)


@dataclass(frozen=True, slots=True)
class DeclarePeriodic:
    """What ``@app.periodic(...)`` gives: a decorator that keeps the handler's types."""

    declare: Declare
    schedule: Schedule | str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: PeriodicOptions

    @overload
    def __call__(self, handler: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[SyncTaskContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Any:
        task = self.declare.declared(handler, sys._getframe(1).f_locals)
        task.periodic(self.schedule, args=self.args, kwargs=self.kwargs, **self.options)
        return task


async def _ended_or_left(timeout_s: float) -> None:
    """Let what is left in the loop end. ``asyncio.run`` would wait for ever for a
    handler that does not take a cancellation."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=timeout_s)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _positive(timeout: Duration) -> timedelta:
    found = to_timedelta(timeout, "timeout")
    if found <= timedelta(0):
        raise UsageError("timeout: longer than 0")
    return found


__all__ = ["Bound", "Declare", "DeclarePeriodic", "EnqueueOptions", "Sokka", "Task"]
