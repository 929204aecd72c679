"""${message}"""

from pathlib import Path

from alembic import op

from sokka_pg.migrate import hosting

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    hosting.load_revision(op.get_context(), Path(__file__).with_name(revision))


def downgrade() -> None:
    ${downgrades if downgrades else "raise RuntimeError('say how to go back')"}
