"""The decode loop: draft, prune, verify, commit, for all sequences in flight at once."""

from __future__ import annotations

import logging
import time

import numpy as np

from python_backend.budget.dcut import Choice
from python_backend.budget.policies import Drafts, Policy
from python_backend.coordinator.drafting import DraftCalls
from python_backend.coordinator.emit import Response, append, respond
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.report import StepLog, StepReport, record_load
from python_backend.coordinator.request import RequestError
from python_backend.coordinator.router import Router
from python_backend.coordinator.scheduler import Batch, Scheduler
from python_backend.coordinator.sequence import Sequence
from python_backend.engines.base import EngineError, EngineLostError, TargetEngine
from python_backend.protocol import Array, Description, Open, TargetResult, TargetStep, row_starts
from python_backend.sampling.params import columns

log = logging.getLogger(__name__)


class DecodeLoop:
    """Runs on one thread; `step` is the whole story."""

    def __init__(
        self,
        target: TargetEngine,
        described: Description,
        calls: DraftCalls,
        router: Router,
        scheduler: Scheduler,
        policy: Policy,
        metrics: Metrics,
        step_log: StepLog,
    ) -> None:
        """described: the target's own description."""
        self.target, self.calls, self.router = target, calls, router
        self.scheduler, self.policy = scheduler, policy
        self.metrics, self.step_log = metrics, step_log
        self.prefix_block, self.captures = described.prefix_block, described.feature_size > 0
        self.outgoing: list[Response] = []

    def step(self) -> bool:
        """One step for everyone. False if nobody was there."""
        self.drop_finished()
        batch, held = self.schedule()
        record_load(self.metrics, self.scheduler)
        if not batch:
            self.send()
            return False
        report = StepReport(batch=len(batch.decoding), held_rows=held)
        try:
            drafts, draft_ids = self.draft(batch, report)
            choice = self.prune(drafts, report)
            result = self.verify(batch, choice, draft_ids, report)
        except EngineError as error:
            # Where the engine lost its slots, every running sequence lost its KV.
            lost = isinstance(error, EngineLostError)
            self.fail_all(list(self.scheduler.running) if lost else batch.sequences, error)
            return True
        self.commit(batch, choice, drafts, draft_ids, result, report)
        return True

    def schedule(self) -> tuple[Batch, int]:
        """Who runs in this step, and the prompt rows that need no pass because the target holds them."""
        self.scheduler.admit()
        held = 0
        while True:
            batch = self.scheduler.schedule()
            starting = [s for s, _ in batch.chunks if not s.opened and s.prompt_length > self.prefix_block > 0]
            if not starting:
                return batch, held
            held += self.open(starting)  # leaves prompt rows for others, who may start with it

    def open(self, starting: list[Sequence]) -> int:
        """Begin with the rows that the target holds of these prompts. As late as this, so that prompts that arrive
        together find what the first of them left. Returns how many rows."""
        for sequence in starting:
            sequence.opened = True
        try:
            opened = self.target.open(_opening(starting, self.unread(starting)))
        except EngineLostError as error:
            self.fail_all(list(self.scheduler.running), error)
            return 0
        except EngineError as error:  # nothing is lost but time
            log.warning("open failed, %d prompts are prefilled whole: %s", len(starting), error)
            return 0
        features = np.split(opened.features, row_starts(opened.feature_count)[1:-1])
        for sequence, held, rows in zip(starting, opened.held.tolist(), features, strict=True):
            sequence.cached = held
            if held and opened.features.shape[1] and sequence.drafter:
                sequence.features.append(rows)
        return int(opened.held.sum())

    def draft(self, batch: Batch, report: StepReport) -> tuple[Drafts, Array]:
        """One call per drafter, for all its decoding sequences. Returns the drafts and their ids [B, D]."""
        sequences = batch.decoding
        limit = np.array([s.draft_limit if self.policy.drafts else 0 for s in sequences], dtype=np.int64)
        drafted = self.calls.run(sequences, limit, self.policy.terms(len(sequences)), report)
        report.drafted = int(drafted.available.sum())
        full = np.array([s.depth if limit[i] else 0 for i, s in enumerate(sequences)], dtype=np.int64)
        return Drafts(drafted.confidence, drafted.available, full, drafted.predicted_ms), drafted.ids

    def prune(self, drafts: Drafts, report: StepReport) -> Choice:
        """The budget decides how many drafts of each sequence are verified."""
        start = time.perf_counter()
        choice = self.policy.select(drafts) if len(drafts.available) else Choice(drafts.available, 0, 0.0, 0.0, 0.0)
        report.select_ms = (time.perf_counter() - start) * 1e3
        report.rows, report.rho, report.predicted_ms = choice.rows, choice.rho, choice.predicted_ms
        report.kept, report.expected = int(choice.kept.sum()), choice.expected_tokens - len(drafts.available)
        return choice

    def verify(self, batch: Batch, choice: Choice, draft_ids: Array, report: StepReport) -> TargetResult:
        """One call with the rows of all sequences: anchors with kept drafts, then prompt chunks."""
        step = _target_step(batch, choice.kept, draft_ids, self.unread(batch.sequences))
        self.send()
        start = time.perf_counter()
        result = self.target.step(step)
        report.verify_ms = (time.perf_counter() - start) * 1e3
        report.verify_engine_ms = float(result.engine_ms[0])
        return result

    def unread(self, sequences: list[Sequence]) -> Array:
        """Slots whose features no drafter will ask for, and no router either."""
        silent = [s for s in sequences if not s.undecided and s.drafter not in self.calls.readers]
        return np.array([s.slot for s in silent if self.captures], dtype=np.int32)

    def commit(
        self, batch: Batch, choice: Choice, drafts: Drafts, draft_ids: Array, result: TargetResult, report: StepReport
    ) -> None:
        """Append what the target emitted, answer the clients, free the slots of those who are done."""
        features = np.split(result.features, row_starts(result.feature_count)[1:-1])
        log_probs = np.split(result.log_probs, row_starts(result.log_prob_count)[1:-1])
        finished = []
        for i, sequence in enumerate(batch.sequences):
            if i < len(batch.decoding):
                accepted = int(result.accepted[i])
                sequence.cached += 1 + accepted
                tokens = [*draft_ids[i, :accepted].tolist(), int(result.next_token[i])]
            else:
                rows = batch.chunks[i - len(batch.decoding)].rows
                sequence.cached += rows
                tokens = [] if sequence.prefilling else [int(result.next_token[i])]
                report.prompt_rows += rows
            if result.features.shape[1] and sequence.drafter:
                sequence.features.append(features[i])
            sequence.log_probs += log_probs[i].tolist()
            if tokens and sequence.output_length == 0:
                self.metrics.observe("angelspec_time_to_first_token_s", time.monotonic() - sequence.arrived)
                self.router.settle(sequence)
            used, reason = append(sequence, tokens)
            report.emitted += used
            if i < len(batch.decoding):
                accepted = min(used, len(tokens) - 1)  # drafts after the end were not needed
                report.accepted += accepted
                sequence.stats.record(int(drafts.available[i]), int(choice.kept[i]), accepted, used)
            if response := respond(sequence, reason):
                self.outgoing.append(response)
            if reason:
                finished.append(sequence)
        self.release(finished)
        self.metrics.add("angelspec_requests_finished_total", len(finished))
        report.finish(self.metrics)
        self.step_log.write(report)

    def send(self) -> None:
        """Hand the last step's responses over. Just before a verify call, because sending goes through the same
        channel as calls: beside the short draft call it would delay it, beside the long verify call it is free."""
        outgoing, self.outgoing = self.outgoing, []
        for response in outgoing:
            response.responder.send(response.outputs, response.final)

    def drop_finished(self) -> None:
        """Between steps: sequences whose client left, whose time is over, or that were told to stop."""
        now = time.monotonic()
        gone = [s for s in self.scheduler.running if s.is_over(now)]
        waiting = self.scheduler.remove_waiting(lambda s: s.is_over(now))
        if gone:
            self.send()
        for sequence in (*gone, *waiting):
            if sequence.is_cancelled:
                sequence.responder.fail(RequestError("request was cancelled", "CANCELLED"))
                self.metrics.add("angelspec_requests_cancelled_total")
            else:
                sequence.responder.fail(
                    RequestError("deadline exceeded before the request was finished", "UNAVAILABLE")
                )
                self.metrics.add("angelspec_requests_failed_total")
        self.release(gone)

    def fail_all(self, sequences: list[Sequence], error: EngineError) -> None:
        """A call of the target failed: its requests fail with the engine's message, nothing else does."""
        log.error("target failed: %s", error)
        self.send()  # what they emitted before
        for sequence in sequences:
            sequence.responder.fail(RequestError(f"target engine failed: {error}", "INTERNAL"))
        self.metrics.add("angelspec_requests_failed_total", len(sequences))
        self.release(sequences)

    def release(self, sequences: list[Sequence]) -> None:
        """Free the slots here and in the engines."""
        if not sequences:
            return
        try:
            self.target.release(np.array([s.slot for s in sequences], dtype=np.int32))
        except EngineError as error:  # the next sequence in the slot starts at length 0 anyway
            log.warning("release failed: %s", error)
        self.calls.release(sequences)
        for sequence in sequences:
            self.scheduler.finish(sequence)


def _opening(starting: list[Sequence], unread: Array) -> Open:
    return Open(
        slot=np.array([s.slot for s in starting], dtype=np.int32),
        row_count=np.array([s.prompt_length for s in starting], dtype=np.int32),
        token_ids=np.array([t for s in starting for t in s.tokens[: s.prompt_length]], dtype=np.int32),
        unread=unread,
    )


def _target_step(batch: Batch, kept: Array, draft_ids: Array, unread: Array) -> TargetStep:
    rows: list[list[int]] = []
    for i, sequence in enumerate(batch.decoding):
        rows.append([sequence.anchor, *draft_ids[i, : kept[i]].tolist()])
    for sequence, count in batch.chunks:
        rows.append(sequence.tokens[sequence.cached : sequence.cached + count])
    sequences = batch.sequences
    sample = [True] * len(batch.decoding) + [s.cached + n == s.prompt_length for s, n in batch.chunks]
    return TargetStep(
        **columns([s.params for s in sequences], [s.prompt_length for s in sequences]),
        slot=np.array([s.slot for s in sequences], dtype=np.int32),
        past_length=np.array([s.cached for s in sequences], dtype=np.int32),
        row_count=np.array([len(r) for r in rows], dtype=np.int32),
        sample=np.array(sample, dtype=np.bool_),
        draft_count=np.concatenate([kept, np.zeros(len(batch.chunks), dtype=np.int64)]).astype(np.int32),
        token_ids=np.array([t for r in rows for t in r], dtype=np.int32),
        unread=unread,
    )
