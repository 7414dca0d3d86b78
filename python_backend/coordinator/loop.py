"""The decode loop: draft, prune, verify, commit, for all sequences in flight at once."""

from __future__ import annotations

import logging
import math
import time

import numpy as np

from python_backend.budget.costs import StepCosts
from python_backend.budget.dcut import Choice, Ints
from python_backend.budget.drafts import Drafts
from python_backend.budget.policies import Policy
from python_backend.coordinator.cost import NOTHING, Cost
from python_backend.coordinator.draft_calls import DraftCalls
from python_backend.coordinator.emit import FinishReason, Response, append, respond
from python_backend.coordinator.gain import Gain
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.reply import internal, too_late
from python_backend.coordinator.report import StepLog, StepReport, record_load
from python_backend.coordinator.request import RequestError
from python_backend.coordinator.router import Router
from python_backend.coordinator.scheduler import Batch, Scheduler
from python_backend.coordinator.sequence import Sequence
from python_backend.coordinator.verify_pass import Share, VerifyPass
from python_backend.engine import EngineLostError, TargetEngine
from python_backend.protocol import Array, Description, PrefixQuery, TargetResult, row_starts

log = logging.getLogger(__name__)

PATIENCE = 4  # searches in a row that find nobody who can be served, before all are failed


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
        costs: StepCosts | None = None,
    ) -> None:
        """described: the target's own description. costs: corrected by each step; None where nothing is predicted."""
        self.target, self.calls, self.router = target, calls, router
        self.scheduler, self.policy = scheduler, policy
        self.metrics, self.step_log, self.costs = metrics, step_log, costs
        self.prefix_block, self.captures = described.prefix_block, described.feature_size > 0
        self.gain = Gain(costs, metrics)
        self.failed_passes = 0  # since one succeeded
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
        drafts = self.draft(batch, report)
        whole = VerifyPass.of(batch, drafts, self.prune(batch, drafts, report))
        try:
            result = self.verify(whole, report)
        except Exception as error:
            self.isolate(whole, error, report)
        else:
            self.commit(whole, result, report)
            self.learn(report)
        report.finish(self.metrics)
        self.step_log.write(report)
        return True

    def learn(self, report: StepReport) -> None:
        """What the step took corrects what the next ones are expected to take."""
        if self.costs is None:
            return
        self.costs.saw_verify(report.batch, report.rows, report.prompt_rows, report.verify_ms)
        self.costs.saw_step(report.predicted_ms, report.elapsed_ms, report.draft_ms + report.verify_ms)
        self.metrics.set("angelspec_prediction_error", self.costs.error)

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
            self.fail(list(self.scheduler.running), error)
            return 0
        except Exception as error:  # nothing is lost but time
            log.warning("open failed, %d prompts are prefilled whole: %s", len(starting), error)
            return 0
        features = np.split(opened.features, row_starts(opened.feature_count)[1:-1])
        for sequence, held, rows in zip(starting, opened.held.tolist(), features, strict=True):
            sequence.cached = held
            if held and opened.features.shape[1] and sequence.drafter:
                sequence.features.append(rows)
        return int(opened.held.sum())

    def draft(self, batch: Batch, report: StepReport) -> Drafts:
        """One call per drafter, for all its decoding sequences."""
        sequences = batch.decoding
        limit = np.array([s.draft_limit if self.policy.drafts else 0 for s in sequences], dtype=np.int64)
        drafts = self.calls.run(sequences, limit, self.policy.prices(len(sequences)), report)
        report.drafted = int(drafts.available.sum())
        return drafts

    def prune(self, batch: Batch, drafts: Drafts, report: StepReport) -> Ints:
        """The budget decides how many drafts of each sequence are verified: [B]."""
        start = time.perf_counter()
        prompt_rows = sum(chunk.rows for chunk in batch.chunks)
        nobody = Choice(drafts.available, 0, 0.0, 0.0, 0.0)
        choice = self.policy.select(drafts, prompt_rows) if batch.decoding else nobody
        report.select_ms = (time.perf_counter() - start) * 1e3
        report.rows, report.rho, report.predicted_ms = choice.rows, choice.rho, choice.predicted_ms
        report.kept, report.expected = int(choice.kept.sum()), choice.expected_tokens - len(drafts.available)
        return choice.kept

    def verify(self, whole: VerifyPass, report: StepReport) -> TargetResult:
        """One call with the rows of all sequences: anchors with kept drafts, then prompt chunks."""
        step = whole.step(self.unread(whole.sequences))
        self.send()
        start = time.perf_counter()
        result = self.target.step(step)
        report.verify_ms += (time.perf_counter() - start) * 1e3
        report.verify_engine_ms += float(result.engine_ms[0])
        self.failed_passes = 0
        return result

    def isolate(self, whole: VerifyPass, error: Exception | None, report: StepReport) -> None:
        """A pass failed: fail only the request that makes it fail.

        Halves of the suspects are tried, the latest to arrive first. Who passes is committed; who is not tried has lost
        nothing and is there in the next step. Nobody fails who was not tried alone, which takes at most log2 B + 1
        passes. Where no pass succeeds any more, the target is at fault and all fail.
        """
        suspects = sorted(whole.sequences, key=lambda s: s.arrived, reverse=True)
        bound = PATIENCE * (1 + math.ceil(math.log2(max(len(suspects), 2))))
        while error is not None:
            self.metrics.add("angelspec_failed_passes_total")
            self.failed_passes += 1
            if isinstance(error, EngineLostError):  # whatever the slots held is gone
                self.fail(list(self.scheduler.running), error)
                return
            if len(suspects) == 1 or self.failed_passes > bound:
                self.fail(suspects if len(suspects) == 1 else whole.sequences, error)
                return
            log.warning("a pass of %d sequences failed, trying parts: %s", len(suspects), error)
            suspects, error = self.first_failing(whole, suspects, report)

    def first_failing(
        self, whole: VerifyPass, suspects: list[Sequence], report: StepReport
    ) -> tuple[list[Sequence], Exception | None]:
        """Half of the suspects, then half of those left, until one such part fails. Returns it and its error."""
        while suspects:
            size = max(len(suspects) // 2, 1)
            half, suspects = suspects[:size], suspects[size:]
            part = whole.part(half)
            try:
                result = self.verify(part, report)
            except Exception as error:
                return half, error
            self.commit(part, result, report)
        return [], None

    def unread(self, sequences: list[Sequence]) -> Array:
        """Slots whose features no drafter will ask for, and no router either."""
        silent = [s for s in sequences if not s.undecided and s.drafter not in self.calls.readers]
        return np.array([s.slot for s in silent if self.captures], dtype=np.int32)

    def commit(self, whole: VerifyPass, result: TargetResult, report: StepReport) -> None:
        """Append what the target emitted, answer the clients, free the slots of those who are done."""
        finished = []
        only_decoding = not whole.chunks and len(whole.decoding) == report.batch
        cost = self.gain.cost(report) if only_decoding else NOTHING
        for share in whole.shares(result):
            try:
                if self.extend(share, cost, report):
                    finished.append(share.sequence)
            except Exception as error:
                log.exception("an answer was not extended")
                self.fail([share.sequence], error)
        self.gain.add(cost, report.emitted, report.batch)
        self.release(finished)

    def extend(self, share: Share, cost: Cost, report: StepReport) -> FinishReason:
        """A sequence gets what a pass brought it. Returns why it ended."""
        sequence = share.sequence
        sequence.cached += share.rows
        if share.features.shape[1] and sequence.drafter:
            sequence.features.append(share.features)
        sequence.log_probs += share.log_probs
        if share.tokens and sequence.output_length == 0:
            self.metrics.observe("angelspec_time_to_first_token_s", time.monotonic() - sequence.arrived)
            self.router.settle(sequence)
        used, reason = append(sequence, share.tokens)
        report.emitted += used
        if share.prompt:
            report.prompt_rows += share.rows
        else:
            accepted = min(used, len(share.tokens) - 1)  # drafts after the end were not needed
            report.accepted += accepted
            sequence.stats.record(share.drafted, share.kept, accepted, used)
            sequence.stats.charge(cost, used)
        if response := respond(sequence, reason):
            self.outgoing.append(response)
        return reason

    def send(self) -> None:
        """Hand the last step's responses over. Just before a verify call, because sending goes through the same
        channel as calls: beside the short draft call it would delay it, beside the long verify call it is free."""
        outgoing, self.outgoing = self.outgoing, []
        for response in outgoing:
            response.reply.send(response.outputs, response.final)

    def drop_finished(self) -> None:
        """Between steps: sequences whose client left, whose time is over, or that were told to stop."""
        now = time.monotonic()
        gone = [s for s in self.scheduler.running if s.is_over(now)]
        waiting = self.scheduler.remove_waiting(lambda s: s.is_over(now))
        if gone:
            self.send()
        for sequence in (*gone, *waiting):
            if sequence.is_cancelled:
                sequence.reply.fail(RequestError("request was cancelled", "CANCELLED"))
            else:
                sequence.reply.fail(too_late())
        self.release(gone)

    def fail(self, sequences: list[Sequence], error: Exception) -> None:
        """These fail with the engine's message, nothing else does."""
        log.error("%d requests fail: %s", len(sequences), error)
        self.send()  # what they emitted before
        for sequence in sequences:
            sequence.reply.fail(internal(f"target engine failed: {error}"))
        self.release(sequences)

    def release(self, sequences: list[Sequence]) -> None:
        """Free the slots here and in the engines."""
        if not sequences:
            return
        try:
            self.target.release(np.array([s.slot for s in sequences], dtype=np.int32))
        except Exception as error:  # the next sequence in the slot starts at length 0 anyway
            log.warning("release failed: %s", error)
        self.calls.release(sequences)
        for sequence in sequences:
            self.scheduler.finish(sequence)


def _opening(starting: list[Sequence], unread: Array) -> PrefixQuery:
    return PrefixQuery(
        slot=np.array([s.slot for s in starting], dtype=np.int32),
        row_count=np.array([s.prompt_length for s in starting], dtype=np.int32),
        token_ids=np.array([t for s in starting for t in s.tokens[: s.prompt_length]], dtype=np.int32),
        unread=unread,
    )
