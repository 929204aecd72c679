"""The ``sokka`` command for tests: ``python -m tests.faults.cli worker …``."""

from sokka_pg.cli import worker
from sokka_pg.cli.main import app, run

if __name__ == "__main__":
    if "worker" not in {command.name for command in app.registered_commands}:
        worker.register(app)
    run()
