"""Every seeded defect is caught, each within a bounded number of interleavings."""

from __future__ import annotations

import pytest

from sokka_pg import schema
from tests.proof.mutants import MUTANTS, Mutant
from tests.proof.simulator import Stage, catch

# The whole search, from seeds that know of no mutant, is `make simulate MUTANT=all`. Here
# it begins shortly before the interleaving at which that one found it.
ROUNDS = 12


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(stage: Stage, mutant: Mutant) -> None:
    found = catch(stage, mutant, range(mutant.seed, mutant.seed + ROUNDS))
    assert found is not None, f"not within {ROUNDS} interleavings"


def test_a_mutant_that_does_not_apply_is_an_error() -> None:
    file = schema.sql_root() / "functions/core/locks.sql"
    gone = Mutant("gone", "functions/core/locks.sql", "queue", (("no such text", ""),))
    with pytest.raises(LookupError, match="0 times"):
        gone.change(gone.file, file.read_text(encoding="utf-8"))
