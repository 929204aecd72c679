"""Calls about the recorded steps of a task: what was done once is not done again."""

from __future__ import annotations

from uuid import UUID

from sokka_pg.calls import arguments
from sokka_pg.calls.statement import Call, Statement, columns_of
from sokka_pg.model import Json, Lease, StepRecord, StepRecorded
from sokka_pg.payload import DATA_LIMIT, encode


def record_step(
    lease: Lease, name: str, value: Json, max_data_bytes: int = DATA_LIMIT
) -> Call[StepRecorded]:
    params = arguments.proof_params(lease)
    params["name"] = arguments.name(name, "name")
    params["value"] = encode(value, "value", max_data_bytes)
    return Call(_RECORD, params, lambda rows: StepRecorded(*rows[0]), repeatable=True)


def list_steps(task_id: UUID | str) -> Call[list[StepRecord]]:
    params = {"task_id": str(arguments.uuid(task_id))}
    return Call(_LIST, params, lambda rows: [StepRecord(*row) for row in rows], repeatable=True)


_RECORD = Statement(
    "record_step",
    columns_of(StepRecorded),
    (
        ("task_id", "uuid"), ("pid", "text"), ("token", "bigint"),
        ("name", "text"), ("value", "jsonb"),
    ),
)  # fmt: skip
_LIST = Statement(
    "list_steps", columns_of(StepRecord), (("task_id", "uuid"),), suffix="order by r.seq"
)
