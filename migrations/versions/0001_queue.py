"""The queue: tasks, leases, fences, history."""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = "0001"
down_revision = None
branch_labels = ("sokka",)
depends_on = None


def upgrade() -> None:
    hosting.load_revision(op.get_context(), Path(__file__).with_name(revision))


def downgrade() -> None:
    hosting.drop_everything(op.get_context())
