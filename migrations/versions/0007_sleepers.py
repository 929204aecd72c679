"""Who sweeps looks for all who sleep; a worker is told how many do, and looks seldom."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BELOW: tuple[str, ...] = (
    "0006/functions/workers/look_for_work.sql",
    "0006/functions/maintenance/sweep.sql",
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
