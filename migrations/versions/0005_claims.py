"""Claims without a hint where none is needed; what most calls do, by fewer steps."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BELOW: tuple[str, ...] = (
    "0004/functions/core/announce.sql",
    "0003/functions/core/scan_hints.sql",
    "0003/functions/core/tokens.sql",
    "0004/functions/producers/create_task.sql",
    "0004/functions/workers/claim.sql",
    "0004/functions/workers/reserve_tasks.sql",
    "0004/functions/workers/exchange_leases.sql",
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
