"""Programs with a scheduler, run by tests as processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from sokka_pg import FanOutRequest
from sokka_pg.workload import (
    AsyncWorkloadScheduler,
    TaskSubmission,
    WorkerInvoker,
    WorkloadScheduler,
    exit_on_sigterm,
)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def run_until_told(url: str) -> None:
    """Five local runs that wait until they are told to stop."""
    exit_on_sigterm()
    scheduler = WorkloadScheduler(url)

    def patient(context: Any) -> None:
        say("running", context.task.task_id)
        context.stop_requested.wait(60)

    for _ in range(5):
        scheduler.submit_one_way(TaskSubmission(), patient)
    time.sleep(60)


def run_for_ever(url: str) -> None:
    """Five local runs of a process that will be killed."""
    scheduler = WorkloadScheduler(url, lease=1)

    def deaf(context: Any) -> None:
        say("running", context.task.task_id)
        time.sleep(60)

    for _ in range(5):
        scheduler.submit_one_way(TaskSubmission(), deaf)
    time.sleep(60)


def await_until_told(url: str) -> None:
    """The same with coroutines, on the program's own loop."""
    exit_on_sigterm()

    begun = []

    async def patient(context: Any) -> None:
        begun.append(context.task.task_id)
        await asyncio.sleep(60)

    async def main() -> None:
        async with AsyncWorkloadScheduler(url) as scheduler:
            for _ in range(5):
                await scheduler.submit_one_way(TaskSubmission(), patient)
            while len(begun) < 5:
                await asyncio.sleep(0.01)
            # not in a handler: the signal's SystemExit would be that handler's failure
            for task_id in begun:
                say("running", task_id)
            await asyncio.sleep(60)

    asyncio.run(main())


def leave_to_others(url: str) -> None:
    """Submits, begins a fan-out and a stream for workers, and is gone."""
    with WorkloadScheduler(url) as scheduler:
        say(scheduler.submit(TaskSubmission(kind="candidate", topic="candidates",
                                            payload={"answer": "one"})).task_id)
        request = FanOutRequest([{"answer": 1}, {"answer": 2}])
        say(scheduler.start_fan_out(request, WorkerInvoker("candidate", "candidates")).task_id)
        say(scheduler.open_stream(TaskSubmission(kind="items", topic="candidates")).task_id)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
