"""``sokka topic`` shows and sets what holds for a whole topic."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sokka_pg.store import PgTaskStore
from tests.cli.conftest import Sokka


def test_a_paused_topic_hands_out_nothing_until_it_is_resumed(sokka: Sokka, db: str) -> None:
    with PgTaskStore(db) as store:
        store.create_task("mail")
        paused = sokka("topic", "pause", "mail", "--reason", "server down", "--json").json
        assert paused["paused_at"] is not None
        assert store.reserve_task("mail", "worker-1") is None
        assert sokka("topic", "resume", "mail").out == "mail is not paused\n"
        assert store.reserve_task("mail", "worker-1") is not None


def test_the_list_counts_what_waits_runs_and_sleeps(sokka: Sokka, db: str) -> None:
    with PgTaskStore(db) as store:
        store.create_tasks([{"topic": "mail"}] * 3)
        store.reserve_task("mail", "worker-1")
    sokka("enqueue", "mail", "--delay", "1h")
    found = sokka("topic", "list", "--json").json["topics"]
    assert [(t["topic"], t["starting"], t["running"], t["snoozed"]) for t in found] == [
        ("mail", 2, 1, 1)
    ]
    assert "mail" in sokka("topic", "list", "mail").out
    assert sokka("topic", "list", "other", "--json").json == {"topics": []}


def test_setting_one_thing_leaves_the_other_as_it_is(sokka: Sokka, db: str) -> None:
    def settings() -> tuple[timedelta | None, timedelta | None]:
        with PgTaskStore(db) as store:
            (found,) = store.topics("mail")
        return found.lease, found.retention

    assert sokka("topic", "set", "mail", "--lease", "2m").code == 0
    assert settings() == (timedelta(minutes=2), None)
    assert sokka("topic", "set", "mail", "--retention", "90d").code == 0
    assert settings() == (timedelta(minutes=2), timedelta(days=90))
    answer = sokka("topic", "set", "mail", "--lease", "default", "--json")
    assert answer.json == {"topic": "mail", "lease": None, "retention": 90 * 86_400.0}
    assert settings() == (None, timedelta(days=90))


@pytest.mark.parametrize(
    "args",
    [
        ["set", "mail"], ["set", "mail", "--lease", "0"], ["set", "mail", "--lease", "2y"],
        ["set", "mail", "--retention", "1m"], ["pause", ""], ["pause", "a\x1bb"], ["resume"],
        ["pause", "mail", "--reason", "x" * 3_000], ["list", "x" * 201],
    ],
)  # fmt: skip
def test_a_wrong_argument_changes_nothing(sokka: Sokka, args: list[str]) -> None:
    assert sokka("topic", *args).code == 2
    assert sokka("topic", "list", "--json").json == {"topics": []}
