"""Leases reach the caller as columns, uncopied; enqueues and idle looks by fewer steps."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BELOW = (
    "0003/functions/core/announce.sql",
    "0003/functions/producers/task_specs.sql",
    "0003/functions/producers/create_task.sql",
    "0003/functions/producers/create_tasks.sql",
    "0003/functions/workers/claim.sql",
    "0003/functions/workers/reserve_tasks.sql",
    "0003/functions/workers/terminate_task.sql",
    "0003/functions/workers/settle.sql",
    "0003/functions/workers/idle.sql",
    "0003/functions/workers/look_for_work.sql",
)
"""Files of the revisions below whose functions come back."""


def upgrade() -> None:
    hosting.load_revision(
        op.get_context(), Path(__file__).with_name(revision), replacing=True, locking=("tasks",)
    )


def downgrade() -> None:
    versions = Path(__file__).parent
    hosting.run_file(op.get_context(), versions / revision / "leave.sql")
    for name in BELOW:
        hosting.run_file(op.get_context(), versions / name, replacing=True)
    hosting.run_file(op.get_context(), versions / revision / "left.sql")
