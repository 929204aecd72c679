"""The fenced code blocks of README.md and docs/*.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LANGUAGES = {"python", "sql", "bash", "ini", "text"}

_FENCE = re.compile(r"^```(.*)$")
_FILE = re.compile(r"#\s+([\w./-]+\.(?:py|ini|jsonl))\s*$")


@dataclass(frozen=True)
class Block:
    """One block: its language, further words of the fence's line, and its text."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str
    heading: str

    @property
    def file(self) -> str | None:
        """The file that the block is, where its first line says so in a comment."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found else None

    @property
    def refused(self) -> str | None:
        """The SQLSTATE with which the block's last statement is refused."""
        return self.words[1] if self.words[:1] == ("refused",) else None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line} ({self.language})"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order. Raises ValueError for one that has no end."""
    found: list[Block] = []
    start, inside, heading = 0, None, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None:
            heading = line.lstrip("# ") if line.startswith("#") else heading
            if fence:
                start, inside, words = number, [], fence[1].split()
        elif fence:
            text = "\n".join(inside) + "\n"
            language, *further = words or [""]
            found.append(Block(page, start, language, tuple(further), text, heading))
            inside = None
        else:
            inside.append(line)
    if inside is not None:
        raise ValueError(f"{page.name}:{start}: a block without an end")
    return found
