"""The folder of a run: everything that was seen, so that it can be judged again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.chaos.judging import witness
from tests.faults.chaos.words import (
    INFO,
    OK,
    Act,
    After,
    Call,
    Effect,
    Injection,
    Run,
    Transaction,
    from_json,
    to_json,
)

CHANGES = "changes.jsonl.gz"
_APART = ("calls", "transactions", "changes", "effects", "injections", "after")


def save_act(act: Act, folder: Path) -> None:
    """What stands in no file yet: history and changes were written as they came."""
    rest = {name: value for name, value in to_json(act).items() if name not in _APART}
    _write(folder / "act.json", rest)
    _write(folder / "after.json", to_json(act.after))
    _write_lines(folder / "effects.jsonl", act.effects)
    _write_lines(folder / "injections.jsonl", act.injections)


def save_run(run: Run, folder: Path) -> None:
    names = [act.name for act in run.acts]
    _write(folder / "run.json", {**to_json(_without_acts(run)), "acts": names})


def _without_acts(run: Run) -> Run:
    return Run(run.seed, run.duration_s, run.plan, run.versions, [], run.not_run, run.command)


def load_run(folder: Path) -> Run:
    """A kept run. Raises ValueError, if the folder holds none."""
    try:
        told = json.loads((folder / "run.json").read_text())
    except OSError as error:
        raise ValueError(f"{folder} holds no run: {error}") from None
    names = told.pop("acts")
    run: Run = from_json(Run, {**told, "acts": []})
    run.acts = [load_act(folder / name) for name in names]
    return run


def load_act(folder: Path) -> Act:
    act: Act = from_json(Act, json.loads((folder / "act.json").read_text()))
    act.after = from_json(After, json.loads((folder / "after.json").read_text()))
    act.effects = [from_json(Effect, told) for told in _lines(folder / "effects.jsonl")]
    act.injections = [from_json(Injection, told) for told in _lines(folder / "injections.jsonl")]
    act.calls, act.transactions = read_history(folder / "history")
    act.changes = witness.kept(folder / CHANGES)
    return act


def read_history(folder: Path) -> tuple[list[Call], list[Transaction]]:
    """All calls and transactions that were recorded, by their begin."""
    calls: list[Call] = []
    transactions: list[Transaction] = []
    for file in sorted(folder.glob("*.jsonl")):
        _read_process(file, calls, transactions)
    calls.sort(key=lambda call: call.began)
    transactions.sort(key=lambda transaction: transaction.began)
    return calls, transactions


def _read_process(file: Path, calls: list[Call], transactions: list[Transaction]) -> None:
    open_calls: dict[int, Call] = {}
    held: dict[int, Transaction] = {}
    process, pid = file.stem, ""
    for told in _lines(file):
        kind = told["k"]
        if kind == "process":
            process, pid = told["process"], told["pid"]
        elif kind == "invoke":
            call = Call(process, told["n"], told["f"], told["a"], told["t"], pid=pid,
                        transaction=told["x"])
            # a producer or an operator may name itself in a call, such as a sweep's
            open_calls[call.number] = call
            calls.append(call)
        elif kind == "begin":
            held[told["n"]] = Transaction(process, told["n"], told["t"])
            transactions.append(held[told["n"]])
        elif kind == "commit":
            held[told["n"]].outcome = told["o"]
            held[told["n"]].ended = None if told["o"] == INFO else told["t"]
        else:
            _end(open_calls.pop(told["n"]), told)


def _end(call: Call, told: dict[str, Any]) -> None:
    call.outcome = told["k"]
    if call.outcome != INFO:
        call.ended = told["t"]
    if call.outcome == OK:
        call.rows = told["r"]
    else:
        call.sqlstate, call.message, call.detail = told["s"], told["m"], told["d"]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file. A process that is killed may leave a part of the last
    one, if a signal cut its write short."""
    if not file.exists():
        return
    with file.open("rb") as opened:
        for line in opened:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _write(file: Path, told: Any) -> None:
    file.write_text(json.dumps(told, default=str, indent=1))


def _write_lines(file: Path, words: list[Any]) -> None:
    with file.open("w") as opened:
        for word in words:
            opened.write(json.dumps(to_json(word), default=str) + "\n")
