"""Prometheus metrics: what `stats()` knows, and the server's own counts and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# figures of stats() that go up and down; the others only grow until the statistics are reset
_LEVELS = frozenset({
    "num_running", "num_waiting", "num_branches", "num_tree_tokens", "num_protected_tokens",
    "num_pinned_tokens", "num_quantized_tokens", "kv_bytes_used", "kv_bytes_peak",
    "kv_bytes_total", "num_pages_total", "num_pages_free",
})  # fmt: skip
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _StatsCollector:
    """Reads the backend's statistics when Prometheus asks for them."""

    def __init__(self, stats: Callable[[], object]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """One metric for each figure."""
        stats = self._stats()
        names = [each.name for each in fields(stats)] if is_dataclass(stats) else []
        for name in names:
            short = name.removeprefix("num_")
            kind = GaugeMetricFamily if name in _LEVELS else CounterMetricFamily
            value = float(getattr(stats, name))
            yield kind(f"radixlang_{short}", f"RuntimeStats.{name}", value=value)


class ServerMetrics:
    """Counts and times of one server's requests."""

    def __init__(self, stats: Callable[[], object]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_StatsCollector(stats))
        self.requests = Counter(
            "radixlang_http_requests", "Requests by path and status", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "radixlang_http_request_seconds", "Seconds from a request to the end of its reply",
            ["path"], buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.first_byte_s = Histogram(
            "radixlang_http_first_byte_seconds", "Seconds until the first byte of a reply's body",
            ["path"], buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.running = Gauge(
            "radixlang_http_running", "Requests that are being served", registry=self.registry
        )

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware that counts and times requests by the path of their route."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve and measure one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, begun_s = self._metrics, time.monotonic()
        status, path, has_begun = 0, "other", False

        async def watched(message: Message) -> None:
            nonlocal status, path, has_begun
            if message["type"] == "http.response.start":
                status, path = message["status"], _route_of(scope)
            elif message.get("body") and not has_begun:
                has_begun = True
                metrics.first_byte_s.labels(path).observe(time.monotonic() - begun_s)
            await send(message)

        with metrics.running.track_inprogress():
            try:
                await self._app(scope, receive, watched)
            finally:
                metrics.requests.labels(path, str(status)).inc()
                metrics.seconds.labels(path).observe(time.monotonic() - begun_s)


def _route_of(scope: Scope) -> str:
    """The route's path, so that unknown addresses make no new series."""
    route = scope.get("route")
    return getattr(route, "path", "other")
