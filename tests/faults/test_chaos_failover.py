"""F9 on a ground of its own: what it does, what it finds, and that all go on by themselves."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sokka_pg.embedded import Binaries, all_binaries
from tests.faults import auditing
from tests.faults.chaos import accounting, pair
from tests.faults.chaos.faults import failover
from tests.faults.chaos.words import Act, Loss
from tests.faults.failing_over import Ground, ground

MAJORS = [pytest.param(each, id=f"pg{each.version}") for each in all_binaries()]
PROMPT, HELD_UP = 2, 7
"""Seeds: of a kill at once, and of one when the standby has stood still for a moment."""
_PRESENT = "select task_id::text from sokka.all_tasks"


async def fail_over(made: Ground, seed: int) -> Loss:
    """One failover, with its checks that hold in both modes."""
    fault = failover.Failover()
    assert fault.possible(None) is None and fault.possible(made) is None
    old, pids = made.primary, [member.os_pid for member in made.crew.workers]
    await fault.run(made, random.Random(seed), time.monotonic() + 4)
    (loss,) = fault.losses
    assert made.primary is not old
    assert [member.os_pid for member in made.crew.workers] == pids
    assert loss.resumed_s is not None and loss.resumed_s < accounting.RESUMED_S, loss
    assert set(loss.resumed) == {member.name for member in made.crew.workers}
    assert max(loss.resumed.values()) < accounting.RESUMED_S
    assert accounting.contradictions(loss) == []
    bite = fault.bites(Act(made.name, 0, 1, 0, 0, 0))
    print(bite.evidence, {name: round(s, 2) for name, s in loss.resumed.items()})
    print(made.injections[-1].detail)
    return loss


def check_kept(made: Ground, loss: Loss) -> None:
    """All that was told and is missing was told of by a commit that only the old one had."""
    answered = set(made.answered)  # before the look: more are answered all the while
    missing = answered - {task for (task,) in made.ask(_PRESENT)}
    lost = {change.id for change in loss.lost_changes}
    assert missing <= lost, missing - lost
    if made.name == "sync":
        assert missing == set()
    with pair.admin(made.primary, made.database) as asking:
        auditing.check_records(asking)
        auditing.check_leases(asking)


@pytest.mark.long
@pytest.mark.parametrize("binaries", MAJORS)
async def test_an_asynchronous_failover_loses_what_only_the_old_primary_had_and_no_more(
    binaries: Binaries, tmp_path: Path
) -> None:
    with ground("async", binaries, tmp_path) as made:
        loss = await fail_over(made, HELD_UP)
        assert loss.lost_changes and accounting.lost_xids(loss)
        assert {change.xid for change in loss.lost_changes} <= accounting.lost_xids(loss)
        assert accounting.lsn(loss.received_lsn) == accounting.lsn(loss.switch_lsn)
        check_kept(made, loss)


@pytest.mark.long
@pytest.mark.parametrize("binaries", MAJORS[-1:])
async def test_a_synchronous_pair_changes_places_twice_and_loses_nothing_that_was_answered(
    binaries: Binaries, tmp_path: Path
) -> None:
    with ground("sync", binaries, tmp_path) as made:
        prompt = await fail_over(made, PROMPT)
        check_kept(made, prompt)
        # commits that wait for a standby which stands still: nobody was told of them
        held_up = await fail_over(made, HELD_UP)
        assert accounting.lost_xids(held_up)
        check_kept(made, held_up)
        assert made.primary is made.servers[0]


def test_failovers_come_every_minute_and_at_least_once() -> None:
    dice = random.Random(1)
    assert len(failover.times(8, dice)) == 1
    assert len(failover.times(40, dice)) == 2
    when = failover.times(300, dice)
    assert len(when) == 5
    assert all(60 * n < at < 60 * (n + 0.4) for n, at in enumerate(when))
