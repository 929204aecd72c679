"""``python -m tests.faults.chaos``: break a queue of real processes on purpose, and judge.

Environment: DURATION (10m: how long faults are fired, in all acts), SEED, PG (a major),
ACTS (storm,sync,async,disk,mixed), MUTANT (a defect to put in, or all), OUT (the run's folder).
``python -m tests.faults.chaos judge FOLDER`` judges a kept run again. Ends with 0 for pass,
1 for FAIL, 2 for wrong arguments, 3 for unknown.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.faults.chaos import whole

BAD_ARGUMENTS = 2


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["judge"] and len(arguments) == 2:
        return _told(lambda: whole.judge_again(Path(arguments[1])))
    if arguments:
        print(__doc__, file=sys.stderr)
        return BAD_ARGUMENTS
    try:
        wanted = whole.read_environment(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS
    if wanted.mutant == whole.EVERY:
        from tests.faults.chaos.catching import catch_all

        return catch_all(wanted.binaries, folder=wanted.out)
    return asyncio.run(_interruptible(wanted))


def _told(work: whole.Work) -> int:
    try:
        return work()
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS


async def _interruptible(wanted: whole.Wanted) -> int:
    """SIGTERM ends it as Ctrl-C does: with everything taken down."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await whole.run(wanted)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)
