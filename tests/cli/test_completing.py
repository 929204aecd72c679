"""The shell offers what is there, and stays quiet where it cannot know."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import psycopg
import pytest

from sokka_pg.store import PgTaskStore

Script = Callable[..., subprocess.CompletedProcess[str]]


def offered(script: Script, line: str, url: str | None) -> list[str]:
    words = line.split(" ")
    answer = script(
        url=url, _SOKKA_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    assert answer.stderr == ""
    return answer.stdout.split()


def test_topics_and_ids_are_completed(db: str, script: Script, conn: psycopg.Connection) -> None:
    with PgTaskStore(db) as store:
        store.create_tasks([{"topic": topic} for topic in ("mail", "mail", "maps", "sms")])
        done = store.create_task("other").task_id
        store.cancel(done)
        store.pause_topic("macaroni")
    assert offered(script, "sokka topic pause ma", db) == ["macaroni", "mail", "maps"]
    assert offered(script, "sokka enqueue s", db) == ["sms"]
    assert offered(script, f"sokka task show {str(done)[:30]}", db) == [str(done)]
    assert offered(script, f"sokka task tree {str(done)[:30]}", db) == [str(done)]
    assert len(offered(script, "sokka task cancel ", db)) == 5
    assert offered(script, "sokka task show zz", db) == []
    assert "resubmit" in offered(script, "sokka task re", None)


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "nonsense"])
def test_no_database_offers_nothing_and_says_nothing(script: Script, url: str) -> None:
    assert offered(script, "sokka topic pause ma", url) == []
