"""Fan-outs with a durable join, steps, streams, watching; locks and schedules."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BELOW = (
    "views/operators.sql",
    "functions/core/moves.sql",
    "functions/producers/task_specs.sql",
    "functions/producers/create_tasks.sql",
    "functions/producers/create_task.sql",
    "functions/workers/claim.sql",
    "functions/workers/report_progress.sql",
    "functions/workers/settle.sql",
    "functions/operators/revoke_lease.sql",
    "functions/operators/resubmit_task.sql",
    "functions/maintenance/sweep.sql",
    "functions/maintenance/partitions.sql",
    "functions/maintenance/retention.sql",
)
"""Files of the revision below whose functions come back."""


def upgrade() -> None:
    hosting.load_revision(op.get_context(), Path(__file__).with_name(revision), replacing=True)


def downgrade() -> None:
    versions = Path(__file__).parent
    hosting.run_file(op.get_context(), versions / revision / "leave.sql")
    for name in BELOW:
        hosting.run_file(op.get_context(), versions / down_revision / name, replacing=True)
    for name in ("left.sql", "grants.sql"):
        hosting.run_file(op.get_context(), versions / revision / name)
