"""sql/roles.sql gives each role what its job needs, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg import PgTaskStore, Sokka, TaskContext, WorkerOptions
from sokka_pg import schema as sql_files
from sokka_pg.errors import UnexpectedDatabaseError
from sokka_pg.workload import FanOutRequest, TaskSubmission, WorkloadScheduler
from tests.docs.surface import functions, relations
from tests.servers import Server

READABLE = {
    "task_history", "topic_stats", "live_leases", "open_fences", "audit_log", "fan_outs",
    "fired_ticks", "held_locks",
}  # fmt: skip
STEERING = {
    "cancel_task", "revoke_lease", "resubmit_task", "pause_topic", "resume_topic", "set_topic",
    "raise_token_epoch", "sweep", "prepare_partitions", "apply_retention",
}  # fmt: skip
LISTING = {"list_tasks", "list_leased_tasks", "get_join", "task_tree", "until_told"}
FIRING = {"next_schedule_at", "due_schedules", "fire_schedules"}
PUTTING = {"put_schedule", "get_schedule"}
AWAITING = {"watch_tasks", "unwatch_tasks", "peek_tasks"}
ANYBODY = {"clock", "topic_hash", "schema_version"}
MAY_CALL = {
    "producer": {
        "create_task", "create_tasks", "create_tasks_like", "cancel_task", "fan_out",
        "open_stream", "delete_schedule", "trigger_schedule",
    } | PUTTING | AWAITING | ANYBODY,
    "worker": {
        "reserve_task", "reserve_tasks", "acquire_lease", "extend_lease", "renew_lease",
        "extend_leases", "release_lease", "terminate_task", "terminate_tasks", "fail_task",
        "retry_task", "snooze_task", "settle_tasks", "settle_and_reserve", "exchange_leases",
        "exchange_work",
        "report_progress",
        "save_checkpoint", "assert_lease", "advance_fence", "get_task", "mark_idle",
        "clear_idle", "look_for_work", "look_around", "sweep", "prepare_partitions",
        "apply_retention",
        "fan_out", "get_join", "join_results", "wait_for_task", "record_step", "list_steps",
        "open_stream",
        "append_stream", "read_stream", "get_stream", "try_lock", "renew_lock", "release_lock",
        "assert_lock",
    } | PUTTING | FIRING | AWAITING | ANYBODY,
    "viewer": LISTING | ANYBODY | {"next_schedule_at"},
    "operator": LISTING | STEERING | PUTTING | FIRING | ANYBODY | {
        "get_task", "list_group", "join_results", "list_steps", "get_stream", "peek_tasks",
        "list_schedules", "pause_schedule", "resume_schedule", "trigger_schedule",
        "delete_schedule",
    },
}  # fmt: skip
MAY_READ = {
    "producer": set(), "worker": set(), "viewer": READABLE,
    "operator": READABLE | {"all_tasks", "all_schedules", "settings"},
}  # fmt: skip
MAY = "select has_function_privilege(%s, %s::oid, 'execute')"
TOUCH = "select has_table_privilege(%s, %s, %s)"
WRITING = "insert, update, delete, truncate, references, trigger"
Roles = dict[str, str]


@pytest.fixture(params=["sokka", "jobs"])
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(server: Server, schema: str) -> Iterator[str]:
    """A database with the queue in a schema of this name."""
    name = server.create()
    with psycopg.connect(server.url(name)) as connection:
        sql_files.load(connection, schema)
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def roles(
    make_role: Callable[[str], str], database: str, schema: str, psql: Callable[..., None]
) -> Iterator[Roles]:
    """One role for each job, after the script has run."""
    found = {job: make_role(job) for job in MAY_CALL}
    names = [word for job, role in found.items() for word in ("-v", f"{job}={role}")]
    psql(database, *names, "-v", f"schema={schema}", "-f", str(sql_files.sql_root() / "roles.sql"))
    yield found
    with psycopg.connect(database) as connection:
        for role in found.values():
            connection.execute(f"drop owned by {role}")


def test_each_role_may_call_and_touch_what_the_table_says(
    database: str, schema: str, roles: Roles
) -> None:
    with psycopg.connect(database) as connection:
        everything = functions(connection, schema)
        for job, role in roles.items():
            callable_ = {
                name for name, oid in everything.items() if _one(connection, MAY, role, oid)
            }
            readable, written = (
                {
                    name for name in relations(connection, schema)
                    if _one(connection, TOUCH, role, f"{schema}.{name}", rights)
                }
                for rights in ("select", WRITING)
            )  # fmt: skip
            assert (job, callable_) == (job, MAY_CALL[job])
            assert (job, readable) == (job, MAY_READ[job])
            assert (job, written) == (job, {"settings"} if job == "operator" else set())


def test_the_roles_do_their_work_from_end_to_end(
    database: str, schema: str, roles: Roles
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:

        def act(job: str, statement: str, *values: object) -> object:
            connection.execute(f"set role {roles[job]}")
            return _one(connection, statement.replace("sokka.", f"{schema}."), *values)

        task_id = act("producer", "select task_id from sokka.create_task('mail', '{\"to\": 1}')")
        token = act("worker", "select token from sokka.reserve_task('mail', 'w')")
        proof = (task_id, "w", token)
        act("worker", "select sokka.assert_lease(%s, %s, %s)", *proof)
        act("worker", "select sokka.save_checkpoint(%s, %s, %s, '1')", *proof)
        assert act("viewer", "select count(*) from sokka.live_leases") == 1
        act("worker", "select sokka.terminate_task(%s, %s, %s, '2')", *proof)
        assert act("viewer", "select count(*) from sokka.task_history") == 3
        assert act("viewer", "select count(*) from sokka.open_fences") == 0
        assert act("viewer", "select count(*) from sokka.list_tasks()") == 1
        assert act("operator", "select result from sokka.all_tasks") == 2
        again = act("operator", "select task_id from sokka.resubmit_task(%s)", task_id)
        act("producer", "select sokka.cancel_task(%s)", again)
        act("operator", "update sokka.settings set notify = false returning notify")
        act("worker", "select woken from sokka.sweep()")
        join_id = act("producer", "select task_id from sokka.fan_out('[{\"topic\": \"parts\"}]')")
        assert act("producer", "select status from sokka.peek_tasks(array[%s::uuid])", join_id)
        part = act("worker", "select task_id from sokka.join_results(%s)", join_id)
        token = act("worker", "select token from sokka.acquire_lease(%s, 'w')", part)
        act("worker", "select sokka.record_step(%s, 'w', %s, 'one', '1')", part, token)
        act("worker", "select sokka.append_stream(%s, 'w', %s, '[1]')", part, token)
        act("worker", "select sokka.terminate_task(%s, 'w', %s)", part, token)
        assert act("viewer", "select count(*) from sokka.task_tree(%s)", join_id) == 2
        assert act("viewer", "select outcome from sokka.fan_outs") == "satisfied"
        assert act("operator", "select value from sokka.list_steps(%s)", part) == 1
        act(
            "producer",
            "select created from sokka.put_schedule('s', '{\"schedule\": \"once\","
            " \"next_at\": \"2024-01-01T00:00:00Z\", \"task\": {\"topic\": \"mail\"}}')",
        )
        assert act("viewer", "select look_at <= clock from sokka.next_schedule_at()") is True
        assert act(
            "worker",
            "select fired from sokka.fire_schedules((select jsonb_agg(jsonb_build_object("
            "'schedule_id', schedule_id, 'generation', generation, 'due_at', due_at,"
            " 'ticks', array[due_at])) from sokka.due_schedules()))",
        ) == 1  # fmt: skip
        assert act("viewer", "select state || runs || topic from sokka.all_schedules") == (
            "finished1mail"
        )
        assert act("viewer", "select extra from sokka.fired_ticks") is False
        assert act("operator", "select task ->> 'topic' from sokka.all_schedules") == "mail"
        assert act("operator", "select deleted from sokka.delete_schedule('s')") is True
        token = act("worker", "select token from sokka.try_lock('k', 'w', '1 minute')")
        assert act("viewer", "select token from sokka.held_locks") == token


async def test_a_worker_and_a_producer_in_python_need_no_more(
    database: str, schema: str, roles: Roles
) -> None:
    def url(job: str) -> str:
        return make_conninfo(database, options=f"-c role={roles[job]}")

    app = Sokka(url("worker"), schema)

    @app.task(topic="mail", max_losses=1)
    async def send(to: str, context: TaskContext) -> None:
        await context.progress({"to": to})
        await context.checkpoint(1)
        async with context.transaction(terminate=True) as fenced:
            fenced.result = "sent"

    worker = app.worker("mail", options=WorkerOptions(lease=5, grace=5))
    running = asyncio.create_task(worker.run())
    with PgTaskStore(url("producer"), schema) as producer:
        made = producer.create_task("mail", {"to": "ann"}, kind="send")
    with PgTaskStore(url("operator"), schema) as operator:
        async with asyncio.timeout(30):
            while not (task := operator.task(made.task_id)).status.final:
                await asyncio.sleep(0.05)
        assert (task.status, task.result) == ("terminated", "sent")
        assert [event.event for event in operator.history(made.task_id)][-1] == "terminated"
        assert operator.topics() == []
    worker.stop()
    await running


def test_a_workload_scheduler_needs_what_producer_and_worker_may(
    database: str, schema: str, roles: Roles, make_role: Callable[[str], str]
) -> None:
    both = make_role("scheduler")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"grant {roles['producer']}, {roles['worker']} to {both}")
    with WorkloadScheduler(make_conninfo(database, options=f"-c role={both}"), schema) as found:
        run = found.submit_async(TaskSubmission(payload=4), lambda context: context.task.data**2)
        assert run.result(30) == 16
        assert found.fan_out(FanOutRequest([1, 2]), lambda n: -n).values() == [-1, -2]
        with found.stream(TaskSubmission(), lambda context: context.emit_many("ab")) as stream:
            assert list(stream) == ["a", "b"]
        task = found.submit(TaskSubmission())
        lease = found.acquire_lease(task.task_id, "ann")
        found.release_lease(task.task_id, "ann", lease.token)
        assert task.cancel() == "cancelled"
        # A listing of everything is the viewer's.
        with pytest.raises(UnexpectedDatabaseError, match="permission denied"):
            found.list_tasks()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"grant {roles['viewer']} to {both}")
        assert task.task_id in {each.task_id for each in found.list_tasks()}


@pytest.mark.parametrize(
    ("job", "statement"),
    [
        ("producer", "select sokka.reserve_task('mail', 'w')"),
        ("worker", "table sokka.tasks"),
        ("worker", "select sokka.create_task('mail')"),
        ("worker", "select sokka.finish_tasks(null, null, null, null, null, null)"),
        ("worker", "truncate sokka.tasks"),
        ("viewer", "table sokka.all_tasks"),
        ("viewer", "select task from sokka.all_schedules"),
        ("viewer", "select sokka.list_schedules()"),
        ("producer", "select sokka.pause_schedule('s')"),
        ("producer", "select sokka.try_lock('k', 'w', '1 s')"),
        ("worker", "select sokka.delete_schedule('s')"),
        ("producer", "select sokka.join_results(gen_random_uuid())"),
        ("producer", "select sokka.read_stream(gen_random_uuid())"),
        ("viewer", "select sokka.list_steps(gen_random_uuid())"),
        ("operator", "select sokka.read_stream(gen_random_uuid())"),
        ("operator", "delete from sokka.settings"),
    ],
)
def test_what_is_not_a_roles_job_is_refused(
    database: str, schema: str, roles: Roles, job: str, statement: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"set role {roles[job]}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.replace("sokka.", f"{schema}."))


def test_a_role_that_is_not_named_gets_nothing(
    db: str, make_role: Callable[[str], str], psql: Callable[..., None]
) -> None:
    role = make_role("worker")
    psql(db, "-f", str(sql_files.sql_root() / "roles.sql"))
    with psycopg.connect(db, autocommit=True) as connection:
        connection.execute(f"set role {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select sokka.reserve_task('mail', 'w')")


def _one(connection: psycopg.Connection, statement: str, *values: object) -> object:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row[0]
