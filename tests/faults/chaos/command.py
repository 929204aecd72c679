"""What a worker process of the run is: ``sokka worker``, with everything recorded."""

from __future__ import annotations

import os

from sokka_pg.cli import worker
from sokka_pg.cli.main import app, run
from tests.faults.chaos import recorder
from tests.faults.chaos.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    recorder.install_from_environment()
    if defect := os.environ.get("CHAOS_MUTANT"):
        from tests.faults.chaos import mutants

        mutants.apply(defect)
    if "worker" not in {command.name for command in app.registered_commands}:
        worker.register(app)
    run()
