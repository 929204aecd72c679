# hints are objects here and not text: some of them are local on purpose
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.registry import BadPayload, Mode, PayloadReader, Registry, TaskSpec, mode_of


class Context:
    __sokka_context__ = "sync"


class Mail(BaseModel):
    to: str
    at: datetime | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    id: UUID
    day: date


@dataclass
class Point:
    x: int
    y: int


class Box(TypedDict):
    width: int


def reader(handler: Any) -> PayloadReader:
    return PayloadReader(handler, mode_of(handler, False))


def spec(handler: Any, kind: str) -> TaskSpec:
    return TaskSpec(kind, "mail", handler, Mode.THREAD, reader(handler))


def test_one_model_parameter_receives_the_whole_payload() -> None:
    def handler(mail: Mail) -> None: ...

    assert reader(handler).read({"to": "a@b"}) == {"mail": Mail(to="a@b")}


def test_a_dataclass_a_typeddict_a_dict_and_any_receive_the_whole_payload() -> None:
    def of_point(p: Point) -> None: ...
    def of_box(p: Box) -> None: ...
    def of_dict(p: dict[str, int]) -> None: ...
    def of_any(p: Any) -> None: ...
    def of_annotated(p: Annotated[Point, Field(description="where")]) -> None: ...

    assert reader(of_point).read({"x": 1, "y": 2}) == {"p": Point(1, 2)}
    assert reader(of_box).read({"width": 3}) == {"p": {"width": 3}}
    assert reader(of_dict).read({"a": 1}) == {"p": {"a": 1}}
    assert reader(of_any).read([1, None]) == {"p": [1, None]}
    assert reader(of_annotated).read({"x": 1, "y": 2}) == {"p": Point(1, 2)}


def test_other_parameters_are_the_keys_of_the_payload_and_are_converted() -> None:
    def handler(ctx: Context, when: datetime, amount: Decimal, note: str = "") -> None: ...

    found = reader(handler).read({"when": "2026-01-01T00:00:00Z", "amount": "1.50"})
    assert found["amount"] == Decimal("1.50")
    assert isinstance(found["when"], datetime)
    assert reader(handler).context_parameter == "ctx"


def test_a_single_plain_parameter_is_a_key() -> None:
    def handler(user_id: int) -> None: ...

    assert reader(handler).read({"user_id": 7}) == {"user_id": 7}


def test_no_parameters_take_no_payload_and_null() -> None:
    def handler() -> None: ...

    assert reader(handler).read(None) == {}
    assert reader(handler).write((), {}) == {}


def test_strict_fields_take_what_json_can_say() -> None:
    def handler(row: Strict) -> None: ...

    row = Strict(id=uuid4(), day=date(2026, 2, 3))
    assert reader(handler).read(reader(handler).write((row,), {})) == {"row": row}


@pytest.mark.parametrize("data", [{"n": "x"}, {}, {"n": 1, "q": 2}, [1], "text", 5, None])
def test_a_payload_that_does_not_fit_is_a_bad_payload(data: Any) -> None:
    def handler(n: int) -> None: ...

    with pytest.raises(BadPayload):
        reader(handler).read(data)


def test_a_bad_payload_is_named_by_path_and_never_quoted() -> None:
    def handler(rows: list[int]) -> None: ...

    with pytest.raises(BadPayload) as bad:
        reader(handler).read({"rows": [1, "secret-value"]})
    assert "$.rows[1]" in str(bad.value)
    assert "secret-value" not in str(bad.value)


def test_a_validator_that_raises_anything_is_a_bad_payload() -> None:
    class Odd(BaseModel):
        n: int

        def model_post_init(self, _: Any) -> None:
            raise ZeroDivisionError

    def handler(odd: Odd) -> None: ...

    with pytest.raises(BadPayload, match="ZeroDivisionError"):
        reader(handler).read({"n": 1})


def test_unknown_keys_go_to_kwargs_if_there_are_any() -> None:
    def handler(a: int, **rest: Any) -> None: ...

    assert reader(handler).read({"a": "1", "b": 2}) == {"a": 1, "b": 2}
    assert reader(handler).write((1,), {"b": 2}) == {"a": 1, "b": 2}


def test_arguments_are_checked_before_they_are_enqueued() -> None:
    def handler(n: int, m: int = 0) -> None: ...

    with pytest.raises(BadArgument, match=r"\$\.n"):
        reader(handler).write(("x",), {})
    with pytest.raises(BadArgument, match="missing"):
        reader(handler).write((), {})
    with pytest.raises(BadArgument, match="unexpected"):
        reader(handler).write((1,), {"q": 2})


def test_aliases_read_back() -> None:
    class Aliased(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        width: int = Field(alias="Width")

    def handler(box: Aliased) -> None: ...

    assert reader(handler).write((Aliased(width=3),), {}) == {"Width": 3}


def test_a_hint_that_names_nothing_is_an_error_at_registration() -> None:
    def handler(x: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="Missing"):
        reader(handler)


def test_a_hint_that_cannot_be_validated_is_an_error_at_registration() -> None:
    class Opaque: ...

    def handler(x: Opaque) -> None: ...

    with pytest.raises(UsageError, match="cannot be validated"):
        reader(handler)


def test_positional_only_parameters_and_star_args_are_refused() -> None:
    def positional(x: int, /) -> None: ...
    def stars(*xs: int) -> None: ...

    for handler in (positional, stars):
        with pytest.raises(UsageError, match="by name"):
            reader(handler)


def test_generators_lambdas_and_local_functions_are_refused_where_they_cannot_work() -> None:
    def generator():  # type: ignore[no-untyped-def]
        yield 1

    async def coroutine() -> None: ...

    with pytest.raises(UsageError, match="generator"):
        mode_of(generator, False)
    with pytest.raises(UsageError, match="async def"):
        mode_of(coroutine, True)
    with pytest.raises(UsageError, match="top of a module"):
        mode_of(lambda: None, True)
    assert mode_of(coroutine, False) is Mode.ASYNC


def test_an_async_handler_with_a_sync_context_is_refused() -> None:
    async def handler(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="TaskContext"):
        reader(handler)


def test_two_contexts_are_one_too_many() -> None:
    def handler(a: Context, b: Context) -> None: ...

    with pytest.raises(UsageError, match="2 contexts"):
        reader(handler)


def test_a_kind_has_one_handler() -> None:
    def handler() -> None: ...

    registry = Registry()
    registry.add(spec(handler, "send"))
    with pytest.raises(UsageError, match="send"):
        registry.add(spec(handler, "send"))
    assert "send" in registry
    assert registry.get("other") is None
    assert registry.topics == ("mail",)
