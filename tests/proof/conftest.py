"""One stage for a module: its database is made once, and emptied between interleavings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.proof.__main__ import stage_on
from tests.proof.simulator import Stage


@pytest.fixture(scope="module")
def stage(server: servers.Server) -> Iterator[Stage]:
    with stage_on(server) as found:
        yield found
