"""One step's figures: metrics for the endpoint, and a JSON line for whoever studies the schedule."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.scheduler import Scheduler


@dataclass
class StepReport:
    """All times in ms. `rows` is K, anchors included; prompt rows come on top."""

    batch: int  # B, decoding sequences
    rows: int = 0
    prompt_rows: int = 0
    held_rows: int = 0  # prompt rows that the target held already
    rho: float = 0.0
    asked: int = 0  # sequences in draft calls
    drafted: int = 0
    kept: int = 0
    expected: float = 0.0  # accepted drafts expected from the kept scores
    accepted: int = 0
    emitted: int = 0
    predicted_ms: float = math.nan
    draft_ms: float = 0.0  # the whole call, transport included
    draft_engine_ms: float = 0.0  # the part inside the engine
    select_ms: float = 0.0
    verify_ms: float = 0.0
    verify_engine_ms: float = 0.0
    step_ms: float = 0.0
    started: float = field(default_factory=time.perf_counter, repr=False)

    @property
    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self.started) * 1e3

    def finish(self, metrics: Metrics) -> None:
        """Stop the clock and count."""
        self.step_ms = self.elapsed_ms
        metrics.add("angelspec_steps_total")
        metrics.add("angelspec_sequence_steps_total", self.batch)
        metrics.add("angelspec_prompt_tokens_total", self.prompt_rows)
        metrics.add("angelspec_held_prompt_tokens_total", self.held_rows)
        metrics.add("angelspec_output_tokens_total", self.emitted)
        metrics.add("angelspec_asked_sequences_total", self.asked)
        metrics.add("angelspec_draft_tokens_total", self.drafted)
        metrics.add("angelspec_kept_tokens_total", self.kept)
        metrics.add("angelspec_accepted_tokens_total", self.accepted)
        metrics.add("angelspec_expected_accepted_total", self.expected)
        metrics.observe("angelspec_step_ms", self.step_ms)
        metrics.observe("angelspec_select_ms", self.select_ms)
        metrics.set("angelspec_batch_size", self.batch)
        metrics.set("angelspec_budget_rows", self.rows)
        metrics.set("angelspec_budget_rho", self.rho)
        if not math.isnan(self.predicted_ms):
            metrics.set("angelspec_predicted_step_ms", self.predicted_ms)


def record_load(metrics: Metrics, scheduler: Scheduler) -> None:
    """Who is there, after a step and after the last one."""
    metrics.set("angelspec_running_sequences", len(scheduler.running))
    metrics.set("angelspec_waiting_requests", scheduler.waiting)
    metrics.set("angelspec_free_slots", scheduler.free_slots)


class StepLog:
    """Step reports as JSON lines; writes nothing where no file is set."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", buffering=1)

    def write(self, report: StepReport) -> None:
        if self._file is not None:
            line = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(report).items()}
            line["predicted_ms"] = None if math.isnan(report.predicted_ms) else line["predicted_ms"]
            print(json.dumps(line), file=self._file)
