"""``sokka task`` shows what is there and steers by whole ids only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from sokka_pg.store import PgTaskStore
from tests.cli.conftest import Sokka


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


def test_the_newest_change_comes_first(sokka: Sokka, store: PgTaskStore) -> None:
    ids = [str(store.create_task("mail", n).task_id) for n in range(5)]
    answer = sokka("task", "list", "--json")
    assert [task["task_id"] for task in answer.json["tasks"]] == ids[::-1]
    assert answer.json["cursor"] is None
    assert "data" not in answer.json["tasks"][0]
    upwards = sokka("task", "list", "--json", "--oldest-first")
    assert [task["task_id"] for task in upwards.json["tasks"]] == ids


def test_a_cursor_goes_on_where_the_page_ended(sokka: Sokka, store: PgTaskStore) -> None:
    ids = [str(store.create_task("mail").task_id) for _ in range(5)]
    first = sokka("task", "list", "-n", 3, "--json").json
    second = sokka("task", "list", "-n", 3, "--cursor", first["cursor"], "--json").json
    found = [task["task_id"] for task in first["tasks"] + second["tasks"]]
    assert found == ids[::-1]
    assert second["cursor"] is None
    assert first["cursor"] in sokka("task", "list", "-n", 3).err


def test_all_pages_to_the_end_as_lines(
    sokka: Sokka, store: PgTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sokka_pg.cli.task.PAGE", 4)
    ids = {str(store.create_task("mail").task_id) for _ in range(9)}
    answer = sokka("task", "list", "--all", "--json")
    assert {line["task_id"] for line in answer.lines} == ids
    assert len(answer.lines) == 9
    assert sum(task_id in sokka("task", "list", "--all").out for task_id in ids) == 9


def test_filters_narrow_the_list(sokka: Sokka, store: PgTaskStore) -> None:
    group = uuid.uuid4()
    mine = store.create_task("mail", kind="send", task_group_id=group, sub_topic="x").task_id
    store.create_task("sms", kind="ring")
    store.cancel(store.create_task("mail", kind="old").task_id)

    def listed(*args: object) -> list[str]:
        return [task["kind"] for task in sokka("task", "list", "--json", *args).json["tasks"]]

    assert listed("--topic", "mail") == ["old", "send"]
    assert listed("--status", "failed") == ["old"]
    assert listed("-s", "failed", "-s", "starting") == ["old", "ring", "send"]
    assert listed("--kind", "ring") == ["ring"]
    assert listed("--sub-topic", "x") == ["send"]
    assert listed("--group", group) == ["send"]
    assert listed("--since", "1h") == ["old", "ring", "send"]
    assert listed("--until", "2001-01-01T00:00Z") == []
    assert str(mine) in sokka("task", "list", "--topic", "mail").out


@pytest.mark.parametrize(
    "args",
    [
        ["--status", "done"], ["--limit", "0"], ["--limit", "10001"], ["--cursor", "zz"],
        ["--since", "soon"], ["--until", "2030-01-01"], ["--group", "0197"], ["--topic", "a\tb"],
        ["--no-such-option"],
    ],
)  # fmt: skip
def test_a_wrong_filter_is_wrong_usage(sokka: Sokka, args: list[str]) -> None:
    answer = sokka("task", "list", *args)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err


def test_an_empty_list_is_no_error(sokka: Sokka) -> None:
    answer = sokka("task", "list")
    assert (answer.code, answer.out) == (0, "")
    assert sokka("task", "list", "--all").code == 0
    assert sokka("task", "list", "--json").json == {"tasks": [], "cursor": None}


def test_show_tells_everything_and_cuts_long_payloads(sokka: Sokka, store: PgTaskStore) -> None:
    task_id = store.create_task("mail", {"text": "x" * 10_000}, unique_key="k").task_id
    store.reserve_task("mail", "worker-1")
    answer = sokka("task", "show", task_id)
    assert answer.code == 0
    for text in (str(task_id), "running", "worker-1", "unique key", "--full shows all"):
        assert text in answer.out
    assert len(answer.out) < 7_000
    assert "x" * 10_000 in sokka("task", "show", task_id, "--full").out
    shown = sokka("task", "show", task_id, "--json").json
    assert shown["data"] == {"text": "x" * 10_000}
    assert shown["pid"] == "worker-1"


def test_history_names_owner_and_token_of_each_step(sokka: Sokka, store: PgTaskStore) -> None:
    task_id = store.create_task("mail").task_id
    leased = store.reserve_task("mail", "worker-1")
    assert leased is not None
    store.terminate(leased)
    answer = sokka("task", "history", task_id, "--json").json
    assert [event["event"] for event in answer["events"]] == ["created", "reserved", "terminated"]
    assert [event["token"] for event in answer["events"]] == [None, leased.token, leased.token]
    text = sokka("task", "history", task_id).out
    assert "worker-1" in text
    assert str(leased.token) in text


@pytest.mark.parametrize("verb", ["show", "history", "cancel", "resubmit"])
def test_an_unknown_id_is_a_refusal_and_a_partial_one_wrong_usage(
    sokka: Sokka, verb: str
) -> None:
    unknown = sokka("task", verb, uuid.uuid4(), "--json")
    assert unknown.code == 1
    assert unknown.json["error"]["type"] == "NoTaskFound"
    for text, rule in (("0197f6c4", "only a part of a UUID"), ("%", "must be a UUID")):
        answer = sokka("task", verb, text)
        assert answer.code == 2
        assert rule in answer.err


def test_cancel_says_what_became_of_the_task(sokka: Sokka, store: PgTaskStore) -> None:
    waiting, running = (store.create_task(topic).task_id for topic in ("a", "b"))
    store.reserve_task("b", "worker-1")
    assert "cancelled" in sokka("task", "cancel", waiting, "--reason", "twice").out
    assert sokka("task", "cancel", waiting, "--json").json["outcome"] == "already_done"
    assert sokka("task", "cancel", running, "--json").json["outcome"] == "requested"
    assert sokka("task", "cancel", running, "--json").json["outcome"] == "already_requested"
    found = store.task(waiting)
    assert found is not None and found.error is not None
    assert found.error["code"] == "cancelled"


def test_revoke_needs_the_version_looked_at_or_force(sokka: Sokka, store: PgTaskStore) -> None:
    task_id = store.create_task("mail").task_id
    leased = store.reserve_task("mail", "worker-1")
    assert leased is not None
    assert sokka("task", "revoke", task_id).code == 2
    assert sokka("task", "revoke", task_id, "--force", "--record-ver", 1).code == 2
    stale = sokka("task", "revoke", task_id, "--record-ver", leased.record_ver - 1, "--json")
    assert (stale.code, stale.json["error"]["type"]) == (1, "TaskConcurrentlyUpdated")
    assert sokka("task", "revoke", task_id, "--record-ver", leased.record_ver).code == 0
    assert store.reserve_task("mail", "worker-2") is not None
    assert sokka("task", "revoke", task_id, "--force", "--json").json["status"] == "starting"
    assert sokka("task", "revoke", task_id, "--force").code == 1


def test_an_open_fence_is_not_revoked(
    sokka: Sokka, store: PgTaskStore, conn: psycopg.Connection
) -> None:
    task_id = store.create_task("mail").task_id
    leased = store.reserve_task("mail", "worker-1")
    assert leased is not None
    with conn.transaction():
        store.assert_lease(leased, connection=conn)
        answer = sokka("task", "revoke", task_id, "--force", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (1, "Busy")


def test_resubmit_prints_the_new_id_and_refuses_an_unfinished_task(
    sokka: Sokka, store: PgTaskStore
) -> None:
    task_id = store.create_task("mail", {"to": "ann"}).task_id
    assert sokka("task", "resubmit", task_id).code == 1
    store.cancel(task_id)
    answer = sokka("task", "resubmit", task_id, "--reason", "again")
    again = store.task(answer.out.strip())
    assert again is not None
    assert (again.data, again.resubmit_of) == ({"to": "ann"}, task_id)
