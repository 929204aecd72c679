"""Failures of a batch by one statement for all; workers get what there is, unswept."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BELOW: tuple[str, ...] = (
    "0003/functions/core/moves.sql",
    "0005/functions/workers/reserve_tasks.sql",
    "0003/functions/workers/extend_leases.sql",
    "0004/functions/workers/terminate_task.sql",
    "0004/functions/workers/settle.sql",
    "0005/functions/workers/exchange_work.sql",
    "0005/functions/workers/exchange_leases.sql",
    "0004/functions/workers/look_for_work.sql",
    "0003/functions/maintenance/sweep.sql",
)
"""Files of the revisions below whose functions come back."""


def upgrade() -> None:
    hosting.load_revision(
        op.get_context(), Path(__file__).with_name(revision), replacing=True, locking=()
    )


def downgrade() -> None:
    versions = Path(__file__).parent
    hosting.run_file(op.get_context(), versions / revision / "leave.sql")
    for name in BELOW:
        hosting.run_file(op.get_context(), versions / name, replacing=True)
    hosting.run_file(op.get_context(), versions / revision / "left.sql")
