"""The answer of ``exchange_work`` with a row for each settlement, as the other verbs have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spelled_out(rows: list[dict[str, Any]], task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Its rows, that of the accepted ones replaced by one for each of them; each with the
    id of its task.

    Where the numbers do not add up nobody can say which were accepted: then none of those
    of which nothing was said gets a row.
    """
    if not rows or rows[0].get("verdict") != "settled":
        return rows
    count = rows[0]["ord"]
    rows = [
        row if row["verdict"] == "reserved" else row | {"task_id": task_ids[row["ord"] - 1]}
        for row in rows[1:]
    ]
    told = {row["ord"] for row in rows if row["verdict"] != "reserved"}
    if count + len(told) != len(task_ids):
        return rows
    accepted = [
        {"ord": place, "task_id": task, "verdict": "ok", "detail": None}
        for place, task in enumerate(task_ids, 1)
        if place not in told
    ]
    return accepted + rows
