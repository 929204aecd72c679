"""Text of a run as text of a page: no mark-up, and nothing that moves what stands beside it."""

from __future__ import annotations

import html
import unicodedata

_REPLACED = "\N{REPLACEMENT CHARACTER}"


def shown(text: object) -> str:
    """The text for a place between tags or inside a quoted attribute. Controls and marks
    of direction, which could reorder the line, stand as a replacement."""
    return html.escape("".join(map(_one, str(text))), quote=True)


def _one(character: str) -> str:
    if character in "\n\t":
        return character
    return _REPLACED if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character
