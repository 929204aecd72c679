"""A trace goes from the enqueue to the handler."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sokka_pg import Fail, Snooze, Sokka, SyncTaskContext, TaskContext
from sokka_pg.events import CancelRequested
from sokka_pg.observers import OpenTelemetryObserver, trace_context
from tests.faults import handlers
from tests.faults.waiting import Seen, until_async
from tests.observers.conftest import Working

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def one(self, name: str) -> Any:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans(app: Sokka) -> Spans:
    made = Spans()
    app.observers.append(OpenTelemetryObserver(made.provider))
    return made


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


@pytest.mark.parametrize("flavour", ["awaited", "threaded"])
async def test_the_spans_of_a_handler_stand_below_the_enqueue(
    app: Sokka, working: Working, spans: Spans, flavour: str
) -> None:
    seen: dict[str, Any] = {}

    @app.task(topic="t")
    async def awaited(ctx: TaskContext) -> None:
        seen["headers"] = ctx.task.headers
        await asyncio.sleep(0)
        with spans.tracer.start_as_current_span("inside"):
            pass

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> None:
        seen["headers"] = ctx.task.headers
        with spans.tracer.start_as_current_span("inside"):
            pass

    handler = {"awaited": awaited, "threaded": threaded}[flavour]
    with spans.tracer.start_as_current_span("request"):
        created = await handler.enqueue_async() if flavour == "awaited" else handler.enqueue()
    async with working("t"):
        await until_async(lambda: spans.named("process t"))
    request, send = spans.one("request"), spans.one("send t")
    process, inside = spans.one("process t"), spans.one("inside")
    assert {ids(span)[0] for span in (request, send, process, inside)} == {ids(request)[0]}
    assert send.parent.span_id == ids(request)[1]
    assert process.parent.span_id == ids(send)[1]
    assert inside.parent.span_id == ids(process)[1]
    assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert process.attributes["messaging.message.id"] == str(created.task_id)
    assert process.status.is_ok
    trace_id, span_id = ids(send)
    assert seen["headers"].keys() == {"traceparent"}
    assert seen["headers"]["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")


async def test_headers_that_are_given_stay(app: Sokka, working: Working, spans: Spans) -> None:
    @app.task(topic="t")
    async def nothing() -> None:
        pass

    given = {"traceparent": GIVEN, "who": "ann"}
    task = await nothing.configure(headers=given).enqueue_async()
    stored = await app.async_store.task(task.task_id)
    assert stored is not None and stored.headers == given
    other = await nothing.configure(headers={"who": "ann"}).enqueue_async()
    stored = await app.async_store.task(other.task_id)
    assert stored is not None and stored.headers is not None
    assert stored.headers.keys() == {"who", "traceparent"}
    async with working("t"):
        await until_async(lambda: len(spans.named("process t")) == 2)
    assert int(GIVEN[3:35], 16) in {ids(span)[0] for span in spans.named("process t")}


@pytest.mark.parametrize("traceparent", ["", "x", "00-0-0-0", "00-" + "0" * 32 + "-" + "0" * 16])
async def test_a_broken_traceparent_begins_a_trace_of_its_own(
    app: Sokka, working: Working, spans: Spans, traceparent: str
) -> None:
    @app.task(topic="t")
    async def nothing() -> None:
        pass

    await app.async_store.create_task(
        "t", kind="nothing", headers={"traceparent": traceparent}
    )
    async with working("t"):
        await until_async(lambda: spans.named("process t"))
    assert spans.one("process t").parent is None


async def test_errors_are_errors_and_outcomes_are_not(
    app: Sokka, working: Working, spans: Spans
) -> None:
    @app.task(topic="a")
    async def breaks() -> None:
        raise ValueError("secret")

    @app.task(topic="b")
    def sleeps() -> None:
        raise Snooze(timedelta(hours=1))

    @app.task(topic="c")
    async def fails() -> None:
        raise Fail({"code": "no"})

    for task in (breaks, sleeps, fails):
        await task.enqueue_async()
    async with working("a,b,c"):
        await until_async(lambda: all(spans.named(f"process {t}") for t in "abc"))
    broken = spans.one("process a")
    assert broken.status.status_code is trace.StatusCode.ERROR
    assert broken.attributes["error.type"] == "ValueError"
    assert "secret" not in broken.to_json()
    for topic, outcome in (("b", "Snooze"), ("c", "Fail")):
        span = spans.one(f"process {topic}")
        assert span.status.is_ok
        assert span.attributes["sokka_pg.outcome"] == outcome


async def test_an_enqueue_that_fails_is_an_error_of_its_span(app: Sokka, spans: Spans) -> None:
    @app.task(topic="t")
    async def nothing() -> None:
        pass

    with pytest.raises(Exception, match="priority"):
        await nothing.configure(priority="high").enqueue_async()  # type: ignore[typeddict-item]
    assert spans.one("send t").attributes["error.type"] == "BadArgument"
    with pytest.raises(Exception, match="headers"):
        nothing.configure(headers="x").enqueue()  # type: ignore[typeddict-item]


async def test_what_happens_to_a_run_is_noted_on_its_span(
    app: Sokka, working: Working, spans: Spans
) -> None:
    began, seen = asyncio.Event(), Seen()
    app.observers.append(seen)

    @app.task(topic="t")
    async def waits() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            # observers are told a moment later than the handler is
            await until_async(lambda: seen.all(CancelRequested))

    task = await waits.enqueue_async()
    async with working("t"):
        await began.wait()
        await app.async_store.cancel(task.task_id)
        await until_async(lambda: spans.named("process t"))
    assert [event.name for event in spans.one("process t").events] == ["CancelRequested"]


async def test_a_handler_in_a_process_of_its_own_has_a_span_here(
    app: Sokka, working: Working, spans: Spans
) -> None:
    handlers.declare_process_tasks(app)
    await app.async_store.create_task(
        "t", {"n": 21}, kind="double", headers={"traceparent": GIVEN}
    )
    async with working("t"):
        await until_async(lambda: spans.named("process t"))
    assert spans.one("process t").parent.span_id == int(GIVEN[36:52], 16)
    assert spans.one("process t").status.is_ok


def test_without_a_trace_the_context_is_empty() -> None:
    assert not trace.get_current_span(trace_context(None)).get_span_context().is_valid
    context = trace_context({"traceparent": GIVEN})
    assert trace.get_current_span(context).get_span_context().is_remote
