"""What the coordinator counts. Updates are cheap and in memory; a publisher carries them to Triton's endpoint."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Literal, NamedTuple, Protocol


class Metric(NamedTuple):
    """How a metric is declared; buckets are upper bounds of a histogram, in its own unit."""

    kind: Literal["counter", "gauge", "histogram"]
    description: str
    buckets: tuple[float, ...] = ()


STEP_MS = (5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 250.0, 500.0, 1000.0, 2500.0)
LATENCY_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

METRICS: dict[str, Metric] = {
    "angelspec_requests_total": Metric("counter", "Requests accepted into the queue"),
    "angelspec_requests_finished_total": Metric("counter", "Requests answered to their end"),
    "angelspec_requests_failed_total": Metric("counter", "Requests refused or failed"),
    "angelspec_requests_cancelled_total": Metric("counter", "Requests cancelled by their client"),
    "angelspec_prompt_tokens_total": Metric("counter", "Prompt tokens prefilled"),
    "angelspec_held_prompt_tokens_total": Metric("counter", "Prompt tokens taken from the target's prefix cache"),
    "angelspec_output_tokens_total": Metric("counter", "Tokens emitted"),
    "angelspec_asked_sequences_total": Metric("counter", "Sequences for which a drafter was asked, over all steps"),
    "angelspec_draft_tokens_total": Metric("counter", "Tokens drafted"),
    "angelspec_kept_tokens_total": Metric("counter", "Drafts kept by the budget and verified"),
    "angelspec_accepted_tokens_total": Metric("counter", "Drafts accepted"),
    "angelspec_expected_accepted_total": Metric("counter", "Drafts expected to be accepted: sum of kept scores"),
    "angelspec_drafter_failures_total": Metric("counter", "Draft calls that failed; decoding went on without them"),
    "angelspec_failed_passes_total": Metric("counter", "Verify passes that raised; their requests were tried in parts"),
    "angelspec_thread_deaths_total": Metric("counter", "Threads that died; the log has the reasons"),
    "angelspec_steps_total": Metric("counter", "Decode steps"),
    "angelspec_sequence_steps_total": Metric("counter", "Decode steps summed over their sequences"),
    "angelspec_running_sequences": Metric("gauge", "Sequences that hold a slot"),
    "angelspec_waiting_requests": Metric("gauge", "Requests in the queue"),
    "angelspec_open_requests": Metric("gauge", "Requests that wait for their last answer"),
    "angelspec_free_slots": Metric("gauge", "KV slots without a sequence"),
    "angelspec_batch_size": Metric("gauge", "B: decoding sequences of the last step"),
    "angelspec_budget_rows": Metric("gauge", "K: rows that the last step verified"),
    "angelspec_budget_rho": Metric("gauge", "rho that the budget policy chose last"),
    "angelspec_predicted_step_ms": Metric("gauge", "Prediction for the last step"),
    "angelspec_prediction_error": Metric("gauge", "Running mean of |predicted - measured| / measured step time"),
    "angelspec_speculation_gain": Metric(
        "gauge", "Time of plain decoding, by the cost table, over time spent, for the same tokens; below 1 it costs"
    ),
    "angelspec_ready": Metric("gauge", "1 while requests are served: start-up is done and the decode loop lives"),
    "angelspec_step_ms": Metric("histogram", "Decode step, milliseconds", STEP_MS),
    "angelspec_select_ms": Metric("histogram", "Budget selection, milliseconds", (0.05, 0.1, 0.25, 0.5, 1.0, 2.5)),
    "angelspec_time_to_first_token_s": Metric("histogram", "Arrival to first token, seconds", LATENCY_S),
}


class MetricSink(Protocol):
    """Where published values go; one call per changed metric."""

    def increment(self, name: str, value: float) -> None: ...

    def set(self, name: str, value: float) -> None: ...

    def observe(self, name: str, value: float) -> None: ...


class Metrics:
    """In-memory values; `publish` moves what changed since the last time into a sink."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, float] = defaultdict(float)
        self._gauges: dict[str, float] = {}
        self._observations: list[tuple[str, float]] = []

    def add(self, name: str, value: float = 1.0) -> None:
        with self._lock:
            self._counters[name] += value

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        with self._lock:
            self._observations.append((name, value))

    def publish(self, sink: MetricSink) -> None:
        with self._lock:
            counters, self._counters = self._counters, defaultdict(float)
            gauges, self._gauges = self._gauges, {}
            observations, self._observations = self._observations, []
        for name, value in counters.items():
            if value:
                sink.increment(name, value)
        for name, value in gauges.items():
            sink.set(name, value)
        for name, value in observations:
            sink.observe(name, value)
