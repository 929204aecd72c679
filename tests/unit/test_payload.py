"""Payloads: what is stored unchanged, what is refused with its path, and how
errors become text whatever they are."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import traceback
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg import payload
from sokka_pg.errors import BadArgument


def nested(depth: int) -> list[Any]:
    outermost: list[Any] = []
    innermost = outermost
    for _ in range(depth - 1):
        innermost.append([])
        innermost = innermost[0]
    return outermost


def cyclic() -> list[Any]:
    found: list[Any] = [1]
    found.append({"again": found})
    return found


class Colour(enum.Enum):
    RED = "red"


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not today")


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")
    placed_at: datetime
    price: float = 1.0


@dataclasses.dataclass
class Point:
    x: int
    id: UUID


text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"))
finite = st.floats(allow_nan=False, allow_infinity=False)
plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | text
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)


@given(plain_json)
def test_plain_json_comes_back_as_it_was(value: Any) -> None:
    assert payload.decode(payload.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "path", "rule"),
    [
        ({"a": "x\x00y"}, "$.a", "NUL"),
        ({"a\x00b": 1}, "$.a", "NUL"),
        ({"a": [0, 1, 2, math.nan]}, "$.a[3]", "finite"),
        ([math.inf], "$[0]", "finite"),
        ("\ud800", "$", "surrogate"),
        ({"k\udfff": 1}, "$.k", "surrogate"),
        ({"a": {1: "x"}}, "$.a", "key"),
        ({None: 1}, "$", "key"),
        (10**5000, "$", "1000 digits"),
        ([-(10**1001)], "$[0]", "1000 digits"),
        (nested(101), "$[0][0]", "deeper than 100"),
        (nested(100_000), "$[0][0]", "deeper than 100"),
        (cyclic(), "$[1].again", "itself"),
        (object(), "$", "not JSON"),
        ({"a": {1, 2}}, "$.a", "not JSON"),
        (b"bytes", "$", "not JSON"),
        (datetime(2026, 1, 1, tzinfo=UTC), "$", "not JSON"),
        (Decimal("1E+400"), "$", "not JSON"),
        (Order, "$", "not JSON"),
        (Unreadable(a=1), "$", "RuntimeError"),
        (Point(1, object()), "$", "PydanticSerializationError"),  # type: ignore[arg-type]
        (Order(orderNumber=1, placed_at=datetime(2026, 1, 1), price=math.nan), "$.price", "finite"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else ascii(value)[:30],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: Any, path: str, rule: str) -> None:
    with pytest.raises(BadArgument) as refused:
        payload.encode(value, "result")
    assert refused.value.detail["path"].startswith(path)
    assert refused.value.detail["argument"] == "result"
    assert rule in refused.value.message
    assert len(refused.value.message) < 400


def test_a_hundred_levels_are_enough_for_anyone() -> None:
    assert payload.decode(payload.encode(nested(100))) == nested(100)


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", "\u2028", "𝄞", '"', "\x1b[31m", ""])
def test_odd_but_legal_text_comes_back_byte_for_byte(value: str) -> None:
    assert payload.decode(payload.encode({"a": value})) == {"a": value}


def test_the_size_limit_counts_bytes_and_is_exact() -> None:
    limit = 1_000
    fits = "é" * 499
    assert len(payload.encode(fits, limit=limit).encode()) == limit
    with pytest.raises(BadArgument, match="larger than 1000 bytes"):
        payload.encode(fits + "x", limit=limit)


def test_a_huge_payload_is_refused_without_writing_it_out() -> None:
    megabyte = "x" * 2**20
    with pytest.raises(BadArgument, match="larger than"):
        payload.encode([megabyte] * 300)


def test_models_dataclasses_enums_and_other_mappings_are_taken() -> None:
    placed = datetime(2026, 1, 1, tzinfo=UTC)
    stored = payload.decode(payload.encode(Order(orderNumber=7, placed_at=placed)))
    assert Order.model_validate(stored) == Order(orderNumber=7, placed_at=placed)
    assert payload.decode(payload.encode(Point(1, UUID(int=5)))) == {"x": 1, "id": str(UUID(int=5))}
    assert payload.decode(payload.encode([Colour.RED, (1, 2)])) == ["red", [1, 2]]
    assert payload.decode(payload.encode(MappingProxyType({"a": True}))) == {"a": True}


def test_text_that_was_encoded_once_is_not_encoded_again() -> None:
    once = payload.encode({"a": 1})
    assert payload.encode(once) is once


@pytest.mark.parametrize("stored", ["1" * 5000, "1" * 400 + ".5", "[" * 100_000, "{", "NaN,"])
def test_a_stored_value_that_cannot_be_read_is_data_not_an_exception(stored: str) -> None:
    assert isinstance(payload.decode(stored), payload.UndecodableJson)


def test_a_stored_pickle_or_class_name_stays_data() -> None:
    value = {"__class__": "os.system", "py/object": "os.system", "pickle": "gASVcos\n."}
    assert payload.decode(payload.encode(value)) == value


# Error texts


class Raises(Exception):
    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __str__(self) -> str:
        raise self.kind("hostile")

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Lying(str):
    def __str__(self) -> str:
        raise RuntimeError("hostile")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__name__", "__module__"):
            raise RuntimeError("hostile")
        return super().__getattribute__(name)


class OddClass(Exception, metaclass=Meta):
    pass


class Huge(Exception):
    def __str__(self) -> str:
        return "x\x00\ud800" * 10_000_000


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        ValueError("NUL \x00 and half a pair \udc80"),
        Raises(RuntimeError),
        Raises(SystemExit),
        Raises(RecursionError),
        NotText(),
        OddClass("odd"),
        Huge(),
        ValueError("é𝄞\x1b" * 10_000),
        KeyError("k"),
    ],
    ids=lambda error: type.__dict__["__qualname__"].__get__(type(error)),
)
def test_any_exception_becomes_an_error_object_that_can_be_stored(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        found = payload.error_object(raised)
    stored = payload.decode(payload.encode(found, "error", payload.SMALL_LIMIT))
    assert stored == found
    assert found["code"] == "error"
    assert "raise error" in found["traceback"]
    assert len(found["message"]) <= payload.MESSAGE_LIMIT


def _fails(where: int) -> None:
    if where == 0:
        raise ValueError("first")
    if where == 1:
        raise ValueError("second")
    _fails(where - 2) if where < 60 else _fails(where - 1)


def test_the_traceback_is_that_of_its_own_place_also_where_one_was_written_before() -> None:
    # twice as many places as are kept, each twice
    for where in [0, 1, 2, 3, 57, 59, 300, *range(60, 60 + 2 * payload._MOST_TRACES)] * 2:
        try:
            _fails(where)
        except ValueError as error:
            frames = traceback.format_tb(error.__traceback__, -20)
            assert payload.error_object(error)["traceback"] == "".join(frames)[-8_000:]
    assert 0 < len(payload._traces) <= payload._MOST_TRACES


def test_code_that_is_alike_in_two_files_is_told_apart() -> None:
    for file in ("one.py", "two.py") * 2:
        try:
            exec(compile("raise ValueError", file, "exec"), {})
        except ValueError as error:
            assert f'File "{file}"' in payload.error_object(error)["traceback"]


@pytest.mark.parametrize(
    "error",
    [
        {"code": "a", "message": "\x01" * 2_499, "type": "\x01" * 2_499, "x": "\x01" * 2_499},
        {"code": "a", **{f"key{n}": "\x01" * 2_400 for n in range(9)}},
        {"code": "a", "k\x00": "b"},
        {"code": "a", "\udc80": "b"},
        {"code": "a", "message": "", "k": "\udc80\x00"},
        {"code": "a", "k" * 70_000: "b"},
    ],
    ids=["long", "many", "NUL in a key", "half a pair in a key", "mended", "long key"],
)
def test_what_fit_error_lets_through_can_be_stored(error: dict[str, Any]) -> None:
    try:
        fitted = payload.fit_error(error)
    except BadArgument:
        return
    payload.encode(fitted, "error", payload.SMALL_LIMIT)


def test_an_interrupt_is_not_swallowed_by_reading_an_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        payload.error_object(Raises(KeyboardInterrupt))


def test_error_text_is_mended_not_refused() -> None:
    assert payload.clean_text("a\x00b") == "a\N{REPLACEMENT CHARACTER}b"
    assert payload.clean_text("a\ud800b") == "a\N{REPLACEMENT CHARACTER}b"
    assert payload.clean_text("\ud83d\ude00") == "😀"
    assert payload.clean_text("abcdef", 4) == "abc…"
    assert payload.clean_text(Lying("text")) == "text"
    assert payload.clean_text("\\u0000") == "\\u0000"


@pytest.mark.parametrize("given", ["broke\x00", {"message": "broke\x00"}, ValueError("broke\x00")])
def test_an_error_is_stored_with_code_and_message_however_it_is_given(given: Any) -> None:
    stored = json.loads(payload.encode_error(given))
    assert stored["code"] == "error"
    assert stored["message"] == "broke\N{REPLACEMENT CHARACTER}"


def test_an_error_too_large_loses_its_details_and_keeps_its_code() -> None:
    large = {"code": "boom", "message": "m", "details": ["x" * 1000] * 100, "traceback": "t"}
    stored = json.loads(payload.encode_error(large))
    assert stored == {"code": "boom", "message": "m"}


@pytest.mark.parametrize("given", [None, 5, [], {"message": "m", "extra": object()}])
def test_an_error_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(BadArgument):
        payload.encode_error(given)
