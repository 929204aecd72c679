"""PostgreSQL's protocol, as far as one must follow it to find the reply of a commit.

A message is a type byte, a length that counts itself, and a body. Before the first of
them the client speaks without a type byte, and may ask for encryption; such a request
is answered by one bare byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ENCRYPTION = (80877103, 80877104)
_HEAD_BYTES = 4096
# What commits by itself or by its name, so that a lost answer leaves a client in doubt.
SETTLING = re.compile(
    rb"\b(commit|settle_tasks|settle_and_reserve|exchange_(leases|work)|terminate_tasks?|fail_task"
    rb"|retry_task"
    rb"|snooze_task|release_lease|save_checkpoint|report_progress|record_step|extend_leases?"
    rb"|create_tasks?|fan_out)\b", re.IGNORECASE,
)


@dataclass(frozen=True)
class Message:
    """One that has just become whole; ``start`` and ``end`` lie within the last bytes."""

    kind: bytes
    head: bytes
    start: int
    end: int


class Messages:
    """Splits a stream into its messages, keeping only the beginning of each."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._left: int | None = None

    def feed(self, data: bytes, at: int = 0) -> Iterator[Message]:
        start = at
        while at < len(data):
            if self._left is None:
                taken = data[at : at + 5 - len(self._begun)]
                self._begun += taken
                at += len(taken)
                if len(self._begun) < 5:
                    return
                self._left = int.from_bytes(self._begun[1:5], "big") - 4
            taken = data[at : at + self._left]
            self._begun += taken[: max(0, _HEAD_BYTES - len(self._begun))]
            self._left -= len(taken)
            at += len(taken)
            if self._left == 0:
                yield Message(bytes(self._begun[:1]), bytes(self._begun[5:]), start, at)
                self._begun, self._left, start = bytearray(), None, at


class Conversation:
    """Both directions of one connection."""

    def __init__(self) -> None:
        self._opening = bytearray()
        self._opened = False
        self._bare = 0
        self._client, self._server = Messages(), Messages()
        self._settling_names: dict[bytes, bool] = {}
        self._settling = False

    def asked(self, data: bytes) -> None:
        """The client said this."""
        at = 0 if self._opened else self._open(data)
        if not self._opened:
            return
        for message in self._client.feed(data, at):
            if message.kind == b"Q":
                self._settling |= SETTLING.search(message.head) is not None
            elif message.kind == b"P":
                name, _, text = message.head.partition(b"\0")
                self._settling_names[name] = SETTLING.search(text) is not None
            elif message.kind == b"B":
                name = message.head.split(b"\0", 2)[1]
                self._settling |= self._settling_names.get(name, False)

    def answered(self, data: bytes) -> tuple[int, int] | None:
        """The server said this: from where to where the answer of a commit stands in it."""
        at = min(self._bare, len(data))
        self._bare -= at
        found: tuple[int, int] | None = None
        for message in self._server.feed(data, at):
            ours = self._settling or (message.kind, message.head[:6]) == (b"C", b"COMMIT")
            if ours and message.kind not in (b"S", b"N", b"A"):
                found = (found[0] if found else message.start, message.end)
            if message.kind == b"Z":
                self._settling = False
        return found

    def _open(self, data: bytes) -> int:
        """Follow the opening; where in ``data`` it ends."""
        at = 0
        while at < len(data):
            missing = self._missing()
            taken = data[at : at + missing]
            self._opening += taken
            at += len(taken)
            if len(self._opening) >= 8 and not self._missing():
                code = int.from_bytes(self._opening[4:8], "big")
                self._opening.clear()
                if code not in _ENCRYPTION:
                    self._opened = True
                    return at
                self._bare += 1
        return at

    def _missing(self) -> int:
        whole = int.from_bytes(self._opening[:4], "big") if len(self._opening) >= 4 else 4
        return max(whole, 8) - len(self._opening)
