"""Schedulers of several processes: handles outlive theirs, and none keeps what it ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sokka_pg import SyncTaskContext
from sokka_pg.errors import TaskFailed
from sokka_pg.workload import TaskSubmission
from tests.faults.waiting import until
from tests.workload.faces import Candidates, Crew, Face

ROOT = Path(__file__).parents[2]
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(db: str) -> Iterator[Start]:
    """Begins a program of ``tests.workload.programs``; killed after the test."""
    with ExitStack() as stack:

        def begin(program: str) -> subprocess.Popen[str]:
            process = stack.enter_context(subprocess.Popen(
                [sys.executable, "-m", "tests.workload.programs", program, db],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE, text=True,
            ))
            stack.callback(process.kill)
            return process

        yield begin


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    found = [process.stdout.readline().strip() for _ in range(count)]
    assert all(found), found
    return found


def statuses(conn: psycopg.Connection) -> list[Any]:
    told = "select status || coalesce(' ' || (error ->> 'code'), '') from sokka.all_tasks"
    return [row[0] for row in conn.execute(told).fetchall()]


@pytest.mark.parametrize("program", ["run_until_told", "await_until_told"])
def test_a_process_told_to_end_gives_back_what_it_runs(
    start: Start, conn: psycopg.Connection, program: str
) -> None:
    process = start(program)
    lines(process, 5)
    assert statuses(conn) == ["running"] * 5
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert statuses(conn) == ["starting"] * 5


def test_what_a_killed_process_ran_fails_when_its_leases_are_over(
    start: Start, faces: Callable[..., Face]
) -> None:
    process = start("run_for_ever")
    ids = [line.split()[1] for line in lines(process, 5)]
    process.kill()
    scheduler = faces().scheduler
    # somebody sweeps, as every worker does
    scheduler.submit_one_way(TaskSubmission(), lambda ctx: 1)
    for task_id in ids:
        with pytest.raises(TaskFailed) as failed:
            scheduler.attach(task_id).result(30)
        assert failed.value.code == "lease_lost"


def test_handles_are_taken_up_in_another_process(
    start: Start, face: Face, db: str, candidates: Candidates
) -> None:
    process = start("leave_to_others")
    task_id, fan_out_id, stream_id = lines(process, 3)
    assert process.wait(30) == 0

    def answer(data: Any) -> Any:
        return candidates(data)

    def items(context: SyncTaskContext) -> None:
        context.emit_many(["a", "b", "c"])

    crew = Crew(db, {"candidate": answer, "items": items})
    try:
        assert face(lambda s: s.attach(task_id).result(20)) == "one"
        assert face(lambda s: s.attach_fan_out(fan_out_id).result(20)).values() == [1, 2]
        assert face.all(lambda s: s.attach_stream(stream_id)) == ["a", "b", "c"]
    finally:
        crew.close()


def test_two_processes_of_one_id_do_not_run_each_others_tasks(
    faces: Callable[..., Face],
) -> None:
    first, second = faces(scheduler_id="twin").scheduler, faces(scheduler_id="twin").scheduler
    mine = [first.submit_async(TaskSubmission(), lambda ctx: "first") for _ in range(5)]
    yours = [second.submit_async(TaskSubmission(), lambda ctx: "second") for _ in range(5)]
    assert {handle.result(60) for handle in mine} == {"first"}
    assert {handle.result(60) for handle in yours} == {"second"}


def test_a_stream_crosses_processes_in_order(faces: Callable[..., Face]) -> None:
    producing, reading = faces().scheduler, faces().scheduler

    def count(context: Any) -> Iterator[int]:
        yield from range(300)

    handle = producing.stream(TaskSubmission(), count, max_items=20)
    assert list(reading.attach_stream(handle.task_id)) == list(range(300))
    until(lambda: producing.status(handle.task_id).succeeded)
