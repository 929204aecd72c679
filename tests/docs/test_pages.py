"""Every code block of README.md and docs/ does what it says, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.blocks import LANGUAGES, PAGES, blocks
from tests.docs.reading import Reader

# Pages that begin with a database in which nothing is installed.
FROM_NOTHING = {"README.md", "operator.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_another(
    page: Path, reader: Callable[[bool], Reader]
) -> None:
    typed = reader(page.name not in FROM_NOTHING)
    try:
        for block in blocks(page):
            typed.read(block)
    finally:
        typed.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_its_language(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES
