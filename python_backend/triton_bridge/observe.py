"""Metrics on Triton's endpoint, and the log of python_backend in the server's log."""

from __future__ import annotations

import logging
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.coordinator.metrics import METRICS

log = logging.getLogger(__name__)


class TritonMetrics:
    """A MetricSink. Families are kept: a metric whose family is gone cannot be updated."""

    def __init__(self) -> None:
        self._families: list[Any] = []
        self._metrics: dict[str, Any] = {}
        for name, metric in METRICS.items():
            kind = getattr(pb_utils.MetricFamily, metric.kind.upper(), None)
            if kind is None:  # histograms are newer than the Python backend's other metrics
                log.warning("this Triton has no %s metrics: %s is left out", metric.kind, name)
                continue
            family = pb_utils.MetricFamily(name=name, description=metric.description, kind=kind)
            buckets = {"buckets": list(metric.buckets)} if metric.buckets else {}
            self._families.append(family)
            self._metrics[name] = family.Metric(labels={}, **buckets)

    def increment(self, name: str, value: float) -> None:
        self._metrics[name].increment(value)

    def set(self, name: str, value: float) -> None:
        self._metrics[name].set(value)

    def observe(self, name: str, value: float) -> None:
        if name in self._metrics:
            self._metrics[name].observe(value)


class TritonLog(logging.Handler):
    """Writes records to the server's log."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        else:
            pb_utils.Logger.log_info(text)


def log_to_triton() -> None:
    """From here on what python_backend logs appears in the server's log."""
    handler = TritonLog()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root = logging.getLogger("python_backend")
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.INFO)
