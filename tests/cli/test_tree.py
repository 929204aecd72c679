"""``sokka task tree`` draws what stands below a task; ``show`` tells the rest."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sokka_pg.model import LeasedTask
from sokka_pg.store import PgTaskStore
from tests.cli.conftest import SCRIPT, Sokka


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


@pytest.fixture
def parent(store: PgTaskStore) -> LeasedTask:
    """A running task of the topic ``imports``."""
    store.create_task("imports", kind="import")
    task = store.reserve_task("imports", "worker-1")
    assert task is not None
    return task


def parts(count: int, **spec: Any) -> list[dict[str, Any]]:
    return [{"topic": "parts", "kind": "part", **spec} for _ in range(count)]


def taken(store: PgTaskStore, topic: str = "parts") -> LeasedTask:
    task = store.reserve_task(topic, "worker-2")
    assert task is not None
    return task


def test_a_tree_shows_kinds_statuses_and_how_far_a_fan_out_is(
    sokka: Sokka, store: PgTaskStore, parent: LeasedTask
) -> None:
    join = store.fan_out(parts(4), policy="quorum", needed=2, max_running=2, parent=parent)
    store.fail(taken(store), error={"code": "bad_row", "message": "no"})
    store.terminate(taken(store))
    inner = store.fan_out(parts(1, topic="deeper"), parent=taken(store))
    lines = sokka("task", "tree", parent.task_id).out.splitlines()
    assert lines[0] == f"{parent.task_id} import running, try 1, topic imports"
    assert lines[1] == (
        f"└── {join.task_id} join snoozed, topic parts; "
        "quorum of 2, 2 of 4 done, 1 failed, 2 of 2 at a time"
    )
    assert "#1 " in lines[2] and lines[2].endswith("part failed: bad_row, try 1")
    assert lines[3].endswith("part terminated, try 1")
    assert lines[4].endswith("part running, try 1")
    assert f"{inner.task_id} join snoozed, topic deeper; settled, 0 of 1 done" in lines[5]
    assert lines[6].endswith("part starting")
    assert lines[7].startswith("    └── #4 ")


def test_a_tree_says_how_many_children_it_does_not_show(
    sokka: Sokka, store: PgTaskStore
) -> None:
    join = store.fan_out(parts(30))
    answer = sokka("task", "tree", join.task_id, "--max-children", 7)
    assert answer.out.count(" part starting") == 7
    assert "└── 23 more, not shown" in answer.out
    assert "--max-children" in answer.err
    whole = sokka("task", "tree", join.task_id, "--max-children", 30)
    assert (whole.out.count(" part starting"), whole.err) == (30, "")
    assert "more, not shown" not in whole.out


def test_a_tree_as_json_has_every_task_and_every_fan_out(
    sokka: Sokka, store: PgTaskStore, parent: LeasedTask
) -> None:
    join = store.fan_out(parts(3), policy="all", parent=parent)
    facts = sokka("task", "tree", parent.task_id, "--max-children", 2, "--json").json
    assert [node["level"] for node in facts["tasks"]] == [0, 1, 2, 2]
    assert [node["children"] for node in facts["tasks"]] == [1, 3, 0, 0]
    assert [(each["task_id"], each["total"]) for each in facts["joins"]] == [(str(join.task_id), 3)]


def test_a_tree_deeper_than_the_terminal_is_wide_is_still_drawn(
    sokka: Sokka, store: PgTaskStore
) -> None:
    task = store.create_task("deep").task_id
    root = task
    for _ in range(16):
        task = store.create_task("deep", parent_task_id=task).task_id
    assert str(task) in sokka("task", "tree", root).out
    nodes = sokka("task", "tree", root, "--json").json["tasks"]
    assert [node["level"] for node in nodes] == list(range(17))


def test_a_tree_of_an_unknown_id_is_a_refusal_and_of_a_part_of_one_wrong_usage(
    sokka: Sokka,
) -> None:
    unknown = sokka("task", "tree", uuid.uuid4(), "--json")
    assert (unknown.code, unknown.json["error"]["type"]) == (1, "NoTaskFound")
    assert sokka("task", "tree", "0197f6c4").code == 2
    assert sokka("task", "tree", uuid.uuid4(), "--max-children", 0).code == 2
    assert sokka("task", "tree", uuid.uuid4(), "--max-children", 1001).code == 2


def test_a_tree_keeps_to_the_80_columns_of_a_terminal(db: str, store: PgTaskStore) -> None:
    join = store.fan_out(parts(3, kind="a kind of work with quite a long name"), policy="any")
    leader, follower = pty.openpty()
    try:
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, "task", "tree", str(join.task_id)],
            stdout=follower, stderr=subprocess.PIPE, check=False, timeout=60,
            env={**os.environ, "SOKKA_DATABASE_URL": db, "NO_COLOR": "1", "TERM": "dumb",
                 "COLUMNS": "80"},
        )  # fmt: skip
        shown = os.read(leader, 100_000).decode()
    finally:
        os.close(follower)
        os.close(leader)
    assert (run.returncode, run.stderr) == (0, b"")
    lines = [line.rstrip() for line in shown.splitlines()]
    assert len(lines) > 4 and max(map(len, lines)) <= 80


def test_show_tells_where_a_candidate_belongs(
    sokka: Sokka, store: PgTaskStore, parent: LeasedTask
) -> None:
    join = store.fan_out(parts(2), parent=parent)
    child = taken(store).task_id
    text = sokka("task", "show", child).out
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("parent")] == [
        str(join.task_id)
    ]
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("candidate")] == ["1"]
    shown = sokka("task", "show", join.task_id)
    assert "settled, 0 of 2 done" in shown.out
    assert "when other tasks end" in shown.out and "9998" not in shown.out
    as_json = sokka("task", "show", join.task_id, "--json").json
    assert (as_json["join"]["total"], as_json["parent_task_id"]) == (2, str(parent.task_id))
    assert sokka("task", "show", child, "--json").json["join"] is None


def test_show_tells_the_stream_and_the_last_steps(
    sokka: Sokka, store: PgTaskStore, parent: LeasedTask
) -> None:
    for number in range(25):
        store.record_step(parent, name=f"part {number}", value="x" * 1_000)
    store.open_stream(parent.task_id, 10)
    store.append_stream(parent, items=[1, 2, 3])
    assert len(store.read_stream(parent.task_id, 1)) == 2
    answer = sokka("task", "show", parent.task_id)
    assert "3 items written, 1 read" in answer.out
    assert "2 items of 10 at most" in answer.out
    assert "part 24" in answer.out and "part 4 " not in answer.out
    assert "the last 20 of 25 steps" in answer.err
    assert len(answer.out) < 20_000
    full = sokka("task", "show", parent.task_id, "--full")
    assert "part 4 " in full.out and full.err == ""
    as_json = sokka("task", "show", parent.task_id, "--json").json
    assert as_json["stream"]["last_seq"] == 3
    assert [step["seq"] for step in as_json["steps"]] == list(range(1, 26))
