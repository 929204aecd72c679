"""/metrics over HTTP."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.registry import Collector

from sokka_pg import events
from sokka_pg.errors import UsageError
from sokka_pg.observers import MetricsServer, PrometheusObserver
from tests.observers.samples import EVENTS, task


@pytest.fixture
def served(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    observer = PrometheusObserver(registry)
    for event in (*EVENTS, events.Finished(*task('a "b"\\\n', "<img src=x>"))):
        observer.notice(event)
    made = MetricsServer(registry)
    made.start()
    yield made
    made.close()


def ask(
    served: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(served.host, served.port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_it_listens_on_loopback_unless_told_otherwise(served: MetricsServer) -> None:
    assert served.url == f"http://127.0.0.1:{served.port}/metrics"


def test_what_it_serves_can_be_parsed(served: MetricsServer) -> None:
    status, content_type, body = ask(served)
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = {
        sample.name: sample for family in plain(body) for sample in family.samples
        if sample.labels.get("kind") == "<img src=x>"
    }
    assert found["sokka_attempts_total"].labels["topic"] == 'a "b"\\\n'


def test_openmetrics_is_served_to_those_who_ask(served: MetricsServer) -> None:
    status, content_type, body = ask(served, Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert "sokka_attempts" in {family.name for family in openmetrics(body)}


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x", "text/html", "*/*"])
def test_others_get_plain_text_whatever_they_accept(served: MetricsServer, accept: str) -> None:
    assert ask(served, Accept=accept)[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics/../etc/passwd", "/favicon.ico"])
def test_nothing_else_is_served(served: MetricsServer, path: str) -> None:
    status, content_type, body = ask(served, path)
    assert (status, content_type, body) == (404, "text/plain; charset=utf-8", "see /metrics\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(served: MetricsServer, method: str) -> None:
    status, content_type, body = ask(served, method=method)
    assert (status, content_type, body) == (501, "text/plain; charset=utf-8", "refused\n")


def test_a_head_has_no_body(served: MetricsServer) -> None:
    assert ask(served, method="HEAD") == (200, "text/plain; version=0.0.4; charset=utf-8", "")


def test_clients_that_say_nothing_do_not_keep_others_out_for_ever(
    served: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sokka_pg.observers import serving

    monkeypatch.setattr(serving._Handler, "timeout", 0.2)
    silent = [socket.create_connection((served.host, served.port)) for _ in range(20)]
    try:
        for each in silent:
            each.settimeout(20)
            assert each.recv(1) == b""
        assert ask(served)[0] == 200
    finally:
        for each in silent:
            each.close()


def test_a_collector_that_raises_is_answered_with_an_error_and_serving_goes_on(
    served: MetricsServer, registry: CollectorRegistry
) -> None:
    class Broken(Collector):
        def describe(self) -> list[Gauge]:
            return []

        def collect(self) -> list[Gauge]:
            raise RuntimeError("secret")

    broken = Broken()
    registry.register(broken)
    assert ask(served) == (500, "text/plain; charset=utf-8", "a collector failed\n")
    registry.unregister(broken)
    assert ask(served)[0] == 200


def test_a_port_that_is_taken_is_said(served: MetricsServer, registry: CollectorRegistry) -> None:
    with pytest.raises(UsageError, match=f"cannot be served at 127.0.0.1:{served.port}"):
        MetricsServer(registry, port=served.port)


def test_a_closed_server_gives_its_port_back(registry: CollectorRegistry) -> None:
    first = MetricsServer(registry)
    first.start()
    first.close()
    second = MetricsServer(registry, port=first.port)
    second.close()
