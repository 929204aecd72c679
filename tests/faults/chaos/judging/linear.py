"""A control that does not trust the trigger: L1. Is there an order of the clients' calls,
each between its begin and its answer, in which a register with one holder would have given
these answers? The register and the search are those of tests/proof/linear.py.

What the trigger saw only makes it milder: a grant or an extension that nobody was told of
may have happened as the row says, or never.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from tests.faults.chaos.judging.reading import NEVER, SLACK_US, Reading, Word
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL, INFO, Change
from tests.proof.linear import Op, order

KINDS = {
    "extend": "extend", "renew": "extend", "progress": "keep", "checkpoint": "keep",
    "step": "keep", "append": "keep", "assert": "keep", "release": "leave", "snooze": "leave",
    "retry": "leave", "wait": "leave", "terminate": "end", "fail": "end", "revoke": "revoke",
    "cancel": "cancel", "make": "make", "grant": "grant", "acquire": "acquire",
}  # fmt: skip
# Refusals that say how the register stood. The others say that a caller had no patience.
TELLING = {"SK001", "SK002", "SK003", "SK004", "SK005", "SK006", "SK009"}
NODES = 20_000
# All tasks together; a task takes about ten.
ALL_NODES = 3_000_000
MOST_OPS = 400


@dataclass
class Orders:
    """How many tasks had an order, and of how many it was not found out."""

    found: int = 0
    given_up: int = 0
    left_out: int = 0


def check(
    reading: Reading, of_task: dict[str, list[Change]], leave_out: Container[str], orders: Orders
) -> Iterator[Fault]:
    """``leave_out``: tasks of which a failover lost something."""
    left = ALL_NODES
    for task, words in reading.of_task.items():
        if task in leave_out:
            orders.left_out += 1
            continue
        changes = of_task.get(task, [])
        ops = [
            *(op for n, word in enumerate(words) for op in _ops(n, word)),
            *_unheard(words, changes),
        ]
        if len(ops) > MOST_OPS or left < 0:
            orders.given_up += 1
            continue
        if not any(op.verb == "make" and not op.optional for op in ops):
            ops.append(Op(-1, "made", "make", "ok", 0, NEVER, 0, NEVER, optional=True))
        left -= len(ops)
        verdict = order(ops, _fated(changes), NODES)
        if verdict is None:
            orders.given_up += 1
            left -= NODES
        elif verdict:
            orders.found += 1
        else:
            yield Fault("L1", reading.act.name, task, "no order of its calls explains the answers")


def _fated(changes: list[Change]) -> bool:
    """Whether it may end while nobody holds it: a child, a join, one with a deadline."""
    row = changes[0].row if changes else {}
    return bool(row.get("expires_at") or row.get("parent") or row.get("is_join"))


def _ops(number: int, word: Word) -> Iterator[Op]:
    call = word.call
    refused = word.told not in ("ok", "?")
    if word.state == FAIL and (call.transaction is not None or not refused):
        return
    if refused and (
        word.told not in TELLING
        or word.verb == "make"
        or (word.verb == "acquire" and word.told not in ("SK001", "SK009"))
        or (word.verb == "revoke" and word.told not in ("SK001", "SK002"))
        or (word.verb == "wait" and word.told == "SK001")  # it may be the child's
    ):
        return
    if word.verb == "make" and word.status == "existing":
        return
    lost = word.state == INFO
    if lost and word.verb in ("extend", "renew", "acquire"):
        return  # as the trigger saw it, if it did
    op = Op(
        number, f"call {number}", KINDS[word.verb], word.told if refused else "ok",
        call.began - call.slack_ns,
        NEVER if lost else _ended(word) + call.slack_ns,
        word.low, word.high, word.pid, word.token, word.until, lost, word.status,
    )  # fmt: skip
    if call.function == "acquire_lease":
        op = replace(op, verb="acquire")
    if word.verb == "cancel" and not refused and not lost:
        op = replace(op, told=word.status)
    yield op
    if lost and op.verb in ("leave", "revoke"):
        # Where no answer came, it may have gone either way: waiting, or to its end.
        yield replace(op, after="failed")


def _ended(word: Word) -> int:
    if word.state == FAIL:
        return word.call.ended or NEVER
    return word.ended


def _unheard(words: list[Word], changes: list[Change]) -> Iterator[Op]:
    """Grants and extensions of which no answer was heard."""
    told = {w.token for w in words if w.verb == "grant" and w.state != INFO}
    ends = {(w.token, w.until) for w in words if w.verb in ("extend", "renew") and w.ok}
    for change in changes:
        old, new = change.old, change.new
        if old is None or new is None or new["token"] is None:
            continue
        if old["token"] is None:
            verb = "acquire" if change.function == "acquire_lease" else "grant"
            if new["token"] in told:
                continue
        elif new["until"] != old["until"] and (new["token"], new["until"]) not in ends:
            verb = "extend"
        else:
            continue
        yield Op(
            -change.pos, f"change {change.pos}", verb, "ok", 0, NEVER,
            change.began - SLACK_US, change.at + SLACK_US, new["pid"], new["token"], new["until"],
            optional=True,
        )  # fmt: skip
