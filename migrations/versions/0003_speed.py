"""Fewer statements for each task: create, claim, finish, sweep."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BELOW = (
    "0002/functions/core/arguments.sql",
    "0001/functions/core/announce.sql",
    "0001/functions/core/scan_hints.sql",
    "0001/functions/core/tokens.sql",
    "0001/functions/core/topic_rules.sql",
    "0002/functions/core/moves.sql",
    "0002/functions/joins/inbox.sql",
    "0002/functions/joins/cancel_children.sql",
    "0002/functions/joins/advance_joins.sql",
    "0002/functions/joins/join_results.sql",
    "0002/functions/joins/task_tree.sql",
    "0002/functions/producers/task_specs.sql",
    "0002/functions/producers/create_task.sql",
    "0002/functions/producers/create_tasks.sql",
    "0002/functions/workers/claim.sql",
    "0001/functions/workers/reserve_tasks.sql",
    "0001/functions/workers/acquire_lease.sql",
    "0001/functions/workers/extend_leases.sql",
    "0001/functions/workers/idle.sql",
    "0001/functions/workers/terminate_task.sql",
    "0002/functions/workers/report_progress.sql",
    "0002/functions/workers/settle.sql",
    "0002/functions/workers/watch_tasks.sql",
    "0002/functions/streams/append_stream.sql",
    "0002/functions/streams/read_stream.sql",
    "0002/functions/schedules/fire_schedules.sql",
    "0002/functions/maintenance/sweep.sql",
    "0002/functions/maintenance/partitions.sql",
)
"""Files of the revisions below whose functions come back."""


def upgrade() -> None:
    hosting.load_revision(
        op.get_context(),
        Path(__file__).with_name(revision),
        replacing=True,
        locking=("locked_task", "related_tasks"),
    )


def downgrade() -> None:
    versions = Path(__file__).parent
    hosting.run_file(op.get_context(), versions / revision / "leave.sql")
    for name in BELOW:
        hosting.run_file(op.get_context(), versions / name, replacing=True)
    hosting.run_file(op.get_context(), versions / revision / "left.sql")
