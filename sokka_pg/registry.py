"""Which handler serves which kind of task, and how its payload becomes arguments.

A handler takes at most one context and a payload:

- exactly one other parameter, annotated with a pydantic model, a dataclass, a
  TypedDict, ``dict``/``Mapping`` or ``Any``: it receives the whole payload;
- otherwise the payload is a JSON object and its keys are the parameters, each
  validated by its type hint (no hint: taken as it is). Parameters with a
  default may be missing; unknown keys are refused unless there is a ``**kwargs``.

Hints are read when the handler is registered, so that a wrong one is an error
at import and not at the first task.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NotRequired, Protocol, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict, is_typeddict

from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.model import Json, RetryPolicy

CONTEXT_MARK = "__sokka_context__"
"""Class attribute of the contexts: ``sync`` or ``async``. It lets this module
know them without importing what runs handlers."""


class Mode(StrEnum):
    """Where a handler runs."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


class BadPayload(Exception):
    """The payload does not fit the handler's parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskSpec:
    """A handler and all that is known about it."""

    kind: str
    topic: str
    handler: Callable[..., Any]
    mode: Mode
    payload: PayloadReader
    retry: RetryPolicy | None = None
    timeout: timedelta | None = None
    priority: int | None = None
    max_losses: int | None = None

    @property
    def import_path(self) -> str:
        """``module:qualname``, by which a child process finds the handler."""
        return f"{self.handler.__module__}:{self.handler.__qualname__}"


class Findable(Protocol):
    """What the handler of a task is found by."""

    @property
    def task_id(self) -> UUID: ...
    @property
    def kind(self) -> str: ...


class Registry:
    """Handlers by kind. A kind has one handler."""

    def __init__(self) -> None:
        self._specs: dict[str, TaskSpec] = {}

    def add(self, spec: TaskSpec) -> TaskSpec:
        """Register a handler; a second one of the same kind is a ``UsageError``."""
        known = self._specs.get(spec.kind)
        if known is not None:
            raise UsageError(
                f"kind {spec.kind!r} already has a handler, {known.import_path}"
            )
        self._specs[spec.kind] = spec
        return spec

    def get(self, kind: str) -> TaskSpec | None:
        return self._specs.get(kind)

    def find(self, task: Findable) -> TaskSpec | None:
        """The handler of this very task; here it goes by the kind alone."""
        return self.get(task.kind)

    def __contains__(self, kind: object) -> bool:
        return kind in self._specs

    def __iter__(self) -> typing.Iterator[TaskSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the handlers name, each once, in order of registration."""
        return tuple(dict.fromkeys(spec.topic for spec in self))


def mode_of(handler: Callable[..., Any], process: bool) -> Mode:
    """Where to run the handler; ``process`` asks for a process of its own."""
    asynchronous = inspect.iscoroutinefunction(inspect.unwrap(handler))
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise UsageError(f"handler {_name(handler)} is a generator; it must return")
    if not process:
        return Mode.ASYNC if asynchronous else Mode.THREAD
    if asynchronous:
        raise UsageError(
            f"handler {_name(handler)}: process=True needs a plain function, not async def"
        )
    if "<locals>" in handler.__qualname__ or handler.__name__ == "<lambda>":
        raise UsageError(
            f"handler {_name(handler)}: process=True needs a function at the top of a module"
        )
    return Mode.PROCESS


class PayloadReader:
    """Turns a payload into a handler's arguments, and arguments into a payload."""

    def __init__(
        self,
        handler: Callable[..., Any],
        mode: Mode,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        """``local_names``: what hints may name beside the handler's module; a handler
        declared inside a function has hints that are local to it."""
        self._name = _name(handler)
        parameters, hints = _signature(handler, local_names)
        self.context_parameter = _context_parameter(self._name, parameters, hints, mode)
        rest = [p for p in parameters if p.name != self.context_parameter]
        self._open = any(p.kind is p.VAR_KEYWORD for p in rest)
        named = [p for p in rest if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        self._refuse_unpassable(rest)
        self._signature = inspect.Signature(named)
        self.whole = _whole_parameter(named, hints) if not self._open else None
        hint = hints[self.whole] if self.whole else _object_hint(named, hints, self._open)
        self._adapter: TypeAdapter[Any] = _adapter(self._name, hint)

    def read(self, data: Json) -> dict[str, Any]:
        """Keyword arguments (without the context), or ``BadPayload``."""
        if self.whole is None and data is None:
            data = {}
        value = self._validated(data)
        return {self.whole: value} if self.whole else value

    def write(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Json:
        """The payload that ``read`` turns into these arguments.

        ``BadArgument`` names the parameter that does not fit.
        """
        try:
            value: Any = self._bound(args, kwargs)
            return self._adapter.dump_python(
                self._adapter.validate_python(value), mode="json", by_alias=True
            )
        except (TypeError, ValidationError, ValueError) as exc:
            raise self._bad_argument(exc) from None

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.whole:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments[self.whole]
        if not self._open:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        own = {k: v for k, v in kwargs.items() if k in self._signature.parameters}
        return {**self._signature.bind(*args, **own).arguments, **kwargs}

    def _validated(self, data: Json) -> Any:
        try:
            return self._adapter.validate_python(data)
        except ValidationError as first:
            # strict fields take a date or a UUID from JSON only, not from a str
            try:
                return self._adapter.validate_json(json.dumps(data))
            except (ValidationError, ValueError, RecursionError):
                raise BadPayload(_explain(first)) from None
        except Exception as exc:
            raise BadPayload(f"a validator raised {type(exc).__name__}") from exc

    def _bad_argument(self, exc: Exception) -> BadArgument:
        what = _explain(exc) if isinstance(exc, ValidationError) else str(exc)
        return BadArgument(
            f"{self._name}: {what}", {"argument": "data", "rule": what}
        )

    def _refuse_unpassable(self, rest: list[inspect.Parameter]) -> None:
        for p in rest:
            if p.kind is p.VAR_POSITIONAL or p.kind is p.POSITIONAL_ONLY:
                raise UsageError(
                    f"handler {self._name}: parameter {p.name!r} cannot be given by name"
                )


def _signature(
    handler: Callable[..., Any], local_names: Mapping[str, Any] | None
) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    try:
        hints = typing.get_type_hints(
            handler, localns=dict(local_names or {}), include_extras=True
        )
    except Exception as exc:
        raise UsageError(
            f"handler {_name(handler)}: a type hint cannot be read ({exc})"
        ) from exc
    return list(inspect.signature(handler).parameters.values()), hints


def _context_parameter(
    name: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any], mode: Mode
) -> str | None:
    found = [p.name for p in parameters if hasattr(hints.get(p.name), CONTEXT_MARK)]
    if not found:
        return None
    if len(found) > 1:
        raise UsageError(f"handler {name} takes {len(found)} contexts; one is enough")
    if mode is Mode.ASYNC and getattr(hints[found[0]], CONTEXT_MARK) == "sync":
        raise UsageError(
            f"handler {name} is async: annotate {found[0]!r} with TaskContext"
        )
    return found[0]


def _whole_parameter(
    named: list[inspect.Parameter], hints: Mapping[str, Any]
) -> str | None:
    if len(named) == 1 and named[0].name in hints and _is_whole(hints[named[0].name]):
        return named[0].name
    return None


def _is_whole(hint: Any) -> bool:
    if get_origin(hint) is typing.Annotated:
        return _is_whole(get_args(hint)[0])
    plain = get_origin(hint) or hint
    if plain is Any or is_typeddict(plain):
        return True
    if not isinstance(plain, type):
        return False
    return issubclass(plain, (BaseModel, Mapping)) or dataclasses.is_dataclass(plain)


def _object_hint(
    named: list[inspect.Parameter], hints: Mapping[str, Any], is_open: bool
) -> Any:
    fields = {
        p.name: _field_hint(p, hints.get(p.name, Any)) for p in named
    }
    make: Any = TypedDict  # a type checker wants its fields spelt out
    shape = make("Payload", fields)
    shape.__pydantic_config__ = {"extra": "allow" if is_open else "forbid"}
    return shape


def _field_hint(parameter: inspect.Parameter, hint: Any) -> Any:
    return hint if parameter.default is parameter.empty else NotRequired[hint]


def _adapter(name: str, hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except (PydanticUserError, TypeError, NameError) as exc:
        first_line = str(exc).splitlines()[0]
        raise UsageError(
            f"handler {name}: its payload cannot be validated ({first_line})"
        ) from exc


def _explain(exc: ValidationError) -> str:
    """Where and why, without the values: they may be secret."""
    parts = []
    for error in exc.errors(include_url=False, include_input=False, include_context=False)[:3]:
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"])
        parts.append(f"${where}: {error['msg']}")
    more = exc.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _name(handler: Callable[..., Any]) -> str:
    return f"{handler.__module__}.{handler.__qualname__}"
