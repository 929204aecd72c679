"""Payloads: what may be stored as JSON, and how errors become text.

``encode`` is strict. What JSON or PostgreSQL cannot hold unchanged (NaN, NUL,
half a surrogate pair, a key that is no string, an object of an unknown class)
is refused with the path to it, ``$.items[3].price``, before any SQL is sent.
``decode`` never raises: a stored value that Python cannot read back becomes an
``UndecodableJson``, so that one bad row does not take its batch with it.

Error texts are the opposite: whatever an exception carries, its failure must be
recorded, so ``clean_text`` and ``error_object`` mend instead of refusing.
"""

from __future__ import annotations

import json
import math
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from types import CodeType, TracebackType
from typing import Any

from sokka_pg.errors import BadArgument
from sokka_pg.model import Json

DATA_LIMIT = 1024 * 1024
"""Bytes of JSON text of a payload, a result or a checkpoint."""
SMALL_LIMIT = 64 * 1024
"""Bytes of JSON text of headers, progress or an error."""
MAX_DEPTH = 100
MESSAGE_LIMIT = 8_000
"""Characters kept of an error's message."""

# Python refuses to read integers of more than 4,300 digits; 1,000 leaves room.
_MAX_INT_BITS = 3_321
_MOST_PLAIN = 2**63
_TRACE_FRAMES = 20
_PATH_SHOWN = 200
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Encoded(str):
    """JSON text that ``encode`` made; encoding it again returns it as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class UndecodableJson:
    """Stands where a stored JSON value could not be read. ``reason`` says why."""

    reason: str


def encode(value: object, argument: str = "data", limit: int = DATA_LIMIT) -> Encoded:
    """The JSON text of ``value``, as it will be stored.

    Plain JSON, enums of plain values, dataclasses and pydantic models (both
    through pydantic). Refused with BadArgument, naming ``argument`` and the
    path: anything else, nesting beyond 100, integers beyond 1,000 digits, and
    text longer than ``limit`` bytes. An Encoded passes as it is.
    """
    if isinstance(value, Encoded):
        return _within(value, argument, limit)
    quick = _quickly(value)
    if quick is not None and len(quick) <= limit:
        return _within(Encoded(quick), argument, limit)
    walk = _Walk(argument, limit)
    try:
        text = _dumps(walk.plain(value, 0))
    except BadArgument:
        raise
    except RecursionError:
        raise walk.refuse(f"is nested deeper than {MAX_DEPTH}") from None
    except Exception as error:
        # A container of the caller's own class may raise anything while it is read.
        raise walk.refuse(f"cannot be read as JSON ({type(error).__name__})") from error
    return _within(Encoded(text), argument, limit)


def encode_members(
    values: Sequence[object], limit: int = DATA_LIMIT, around: Mapping[str, Json] | None = None
) -> str | None:
    """The members of a JSON array of these values, if all are beyond doubt; None sends
    them to ``encode``, one by one. With ``around``, each is the member ``data`` of an
    object that has those members as well. One text for all takes a third of the time."""
    try:
        for value in values:
            if not _is_plain(value, 0):
                return None
        whole = list(values) if around is None else [{**around, "data": v} for v in values]
        text = _dumps(whole)[1:-1]
        size = len(text) if text.isascii() else len(text.encode())
    except (ValueError, RuntimeError):
        return None
    return None if size > limit or "\\u0000" in text else text


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _quickly(value: object) -> str | None:
    """The text of a value that is beyond doubt; None sends it on the long way, which
    converts, or finds the place to blame. Most payloads are plain, and this takes less
    than half of the time."""
    try:
        if not _is_plain(value, 0):
            return None
        text = _dumps(value)
        if not text.isascii():
            text.encode()
    except (ValueError, RuntimeError):
        # no finite number, half a surrogate pair, or changed by another thread meanwhile
        return None
    return None if "\\u0000" in text else text


def _is_plain(value: object, depth: int) -> bool:
    kind = type(value)
    if kind is str or value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return -_MOST_PLAIN <= value <= _MOST_PLAIN  # type: ignore[operator]
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for key, member in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not _is_plain(member, depth + 1):
                return False
        return True
    if kind is list:
        for member in value:  # type: ignore[attr-defined]  # noqa: SIM110  (a generator is slower)
            if not _is_plain(member, depth + 1):
                return False
        return True
    return False


def decode(text: str | None) -> Json:
    """The value of stored JSON text; None for SQL NULL. Never raises."""
    if text is None:
        return None
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        return UndecodableJson(f"{type(error).__name__}: {clean_text(error, 200)}")


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError("a number is too large for a float")
    return found


_decoder = json.JSONDecoder(parse_float=_finite)


def clean_text(value: object, limit: int = MESSAGE_LIMIT) -> str:
    """Text of anything, fit for a jsonb string: NUL and lone surrogates become
    U+FFFD, and it is cut to ``limit`` characters. Never raises, whatever the
    object's own ``__str__`` does."""
    text = _text_of(value)
    cut = text[:limit].replace("\x00", _REPLACEMENT)
    if not cut.isascii():
        cut = cut.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(text) > limit and limit > 1:
        cut = cut[: limit - 1] + "…"
    return cut


def error_object(
    error: BaseException, code: str = "error", *, trace: bool = True
) -> dict[str, Json]:
    """What is stored of an exception: code, message, type and, from its
    traceback, the last frames. Never raises, and always fits the limit of an
    error, whatever the exception's own methods do."""
    found: dict[str, Json] = {
        "code": clean_text(code, 100),
        "message": clean_text(error),
        "type": _type_name(error),
    }
    if trace and error.__traceback__ is not None:
        found["traceback"] = _trace_text(error.__traceback__)
    return fit_error(found)


def encode_error(error: str | Mapping[str, Json] | BaseException) -> Encoded:
    """The JSON text of an error, with ``code`` and ``message`` whatever was given:
    a message, an error object, or an exception. Raises BadArgument."""
    if isinstance(error, BaseException):
        return encode(error_object(error), "error", SMALL_LIMIT)
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, Mapping):
        raise BadArgument.of("error", "must be a message, an object or an exception", error)
    return encode(fit_error({"code": "error", "message": "", **error}), "error", SMALL_LIMIT)


def fit_error(error: Mapping[str, Json]) -> dict[str, Json]:
    """An error object made to fit: its texts are cleaned, and what is too large
    loses its traceback first, then its details, then most of its message.
    Raises BadArgument if it is no JSON."""
    found = {
        key: clean_text(value) if isinstance(value, str) else value for key, value in error.items()
    }
    for loss in ("traceback", "details", "stderr"):
        if _fits(found):
            return found
        found.pop(loss, None)
    if not _fits(found):
        kept = {key: clean_text(found.get(key, ""), 2_000) for key in ("code", "message", "type")}
        found = {**kept, "cut": True}
    return found


def _trace_text(trace: TracebackType) -> str:
    """The last frames of a traceback. Handlers that fail do so in few places, and to write
    one out takes half of the time that a failed attempt takes here."""
    last: deque[tuple[CodeType, int]] = deque(maxlen=_TRACE_FRAMES)
    step: TracebackType | None = trace
    while step is not None:
        last.append((step.tb_frame.f_code, step.tb_lasti))
        step = step.tb_next
    # By identity: code that is alike may come from another file.
    place = tuple((id(code), instruction) for code, instruction in last)
    known = _traces.get(place)
    if known is None:
        frames = traceback.format_tb(trace, -_TRACE_FRAMES)
        text = clean_text("".join(frames)[-MESSAGE_LIMIT:])
        if len(_traces) >= _MOST_TRACES:
            _traces.clear()
        known = _traces[place] = text, tuple(code for code, _ in last)
    return known[0]


_MOST_TRACES = 256
_traces: dict[tuple[tuple[int, int], ...], tuple[str, tuple[CodeType, ...]]] = {}
"""Texts by place, and the code of their frames, whose ids are not given to others then."""


def _fits(found: Mapping[str, Json]) -> bool:
    if len(found) <= 4 and all(_is_short(key, value) for key, value in found.items()):
        return True
    try:
        encode(found, "error", SMALL_LIMIT)
    except BadArgument as refused:
        if refused.detail.get("limit") is None:
            raise
        return False
    return True


def _is_short(key: str, value: Json) -> bool:
    # Cleaned text, of which no character takes more than six bytes; four of these fit.
    if type(key) is not str or type(value) is not str:
        return False
    return key.isascii() and key.isidentifier() and len(key) < 200 and len(value) < 2_500


def _within(text: Encoded, argument: str, limit: int) -> Encoded:
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise _too_large(argument, limit)
    return text


def _too_large(argument: str, limit: int) -> BadArgument:
    rule = f"is larger than {limit} bytes of JSON"
    return BadArgument(f"{argument}: {rule}", {"argument": argument, "rule": rule, "limit": limit})


def _text_of(value: object) -> str:
    try:
        # str.__str__ so that a subclass with its own __str__ is read as the text it is.
        text = str.__str__(value) if isinstance(value, str) else str(value)
        return text if type(text) is str else "".join(text)
    except KeyboardInterrupt:
        raise
    except BaseException as hostile:
        return f"<{_type_name(value)}, whose text raised {_type_name(hostile)}>"


def _type_name(value: object) -> str:
    kind = type(value)
    # Through type's own descriptors: a metaclass may lie or raise.
    name = str(type.__dict__["__qualname__"].__get__(kind))
    module = type.__dict__["__module__"].__get__(kind)
    if not isinstance(module, str) or module == "builtins":
        return clean_text(name, 200)
    return clean_text(f"{module}.{name}", 200)


class _Walk:
    """One pass over a value: checks every node, converts what needs it, and
    knows the path to where it stands."""

    def __init__(self, argument: str, limit: int) -> None:
        self.argument = argument
        self.limit = limit
        self.left = limit
        self.path: list[str] = []
        self.above: set[int] = set()

    def refuse(self, rule: str, value: object = None) -> BadArgument:
        where = "$" + "".join(self.path)
        if len(where) > _PATH_SHOWN:
            where = f"{where[:_PATH_SHOWN]}…"
        refused = BadArgument.of(f"{self.argument} at {where}", rule, value)
        refused.detail.update(argument=self.argument, path=where)
        return refused

    def plain(self, value: object, depth: int) -> Json:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self.text(value)  # type: ignore[arg-type]
        if kind is int:
            return self.integer(value)  # type: ignore[arg-type]
        if kind is float:
            return self.number(value)  # type: ignore[arg-type]
        return self.nested(value, depth)

    def nested(self, value: object, depth: int) -> Json:
        if depth >= MAX_DEPTH:
            raise self.refuse(f"is nested deeper than {MAX_DEPTH}")
        if id(value) in self.above:
            raise self.refuse("contains itself")
        self.above.add(id(value))
        try:
            return self.container(value, depth + 1)
        finally:
            self.above.discard(id(value))

    def container(self, value: object, depth: int) -> Json:
        if isinstance(value, Mapping):
            return self.mapping(value, depth)
        if isinstance(value, list | tuple):
            return self.sequence(value, depth)
        if isinstance(value, Enum):
            return self.plain(value.value, depth)
        if _is_typed(value):
            return self.plain(self.jsonable(value), depth)
        return self.scalar(value)

    def scalar(self, value: object) -> Json:
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return self.integer(int(value))
        if isinstance(value, float):
            return self.number(float(value))
        raise self.refuse("is not JSON", value)

    def mapping(self, value: Mapping[Any, object], depth: int) -> dict[str, Json]:
        found = {}
        for key, member in value.items():
            if not isinstance(key, str):
                raise self.refuse("has a key that is not a string", key)
            self.path.append(f".{clean_text(key, 60)}")
            found[self.text(str.__str__(key))] = self.plain(member, depth)
            self.path.pop()
        return found

    def sequence(self, value: list[object] | tuple[object, ...], depth: int) -> list[Json]:
        found = []
        for index, member in enumerate(value):
            self.path.append(f"[{index}]")
            found.append(self.plain(member, depth))
            self.path.pop()
        return found

    def text(self, value: str) -> str:
        self.left -= len(value)
        if self.left < 0:
            raise _too_large(self.argument, self.limit)
        if "\x00" in value:
            raise self.refuse("contains a NUL character, which PostgreSQL cannot store")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.refuse("contains half a surrogate pair") from None
        return value

    def integer(self, value: int) -> int:
        if value.bit_length() > _MAX_INT_BITS:
            raise self.refuse("is an integer of more than 1000 digits")
        return value

    def number(self, value: float) -> float:
        if not math.isfinite(value):
            raise self.refuse("is not a finite number", value)
        return value

    def jsonable(self, value: object) -> object:
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value, by_alias=True, round_trip=True, inf_nan_mode="constants")


def _is_typed(value: object) -> bool:
    """True for dataclass and pydantic instances: their class tells how to read them back."""
    if is_dataclass(value) and not isinstance(value, type):
        return True
    return hasattr(type(value), "__pydantic_serializer__")
