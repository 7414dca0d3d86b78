"""The draft calls of a step: one for each drafter, for all sequences that ask it, and the best of what they say."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from python_backend.budget import draft_payoff
from python_backend.budget.costs import StepCosts
from python_backend.budget.dcut import survival
from python_backend.budget.draft_payoff import Prices
from python_backend.checks import feature_columns
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.report import StepReport
from python_backend.coordinator.sequence import Sequence
from python_backend.engine import DrafterEngine, EngineLostError
from python_backend.protocol import NO_TOKEN, Array, Description, DrafterResult, DrafterStep
from python_backend.sampling.params import draft_columns

log = logging.getLogger(__name__)


class Drafted(NamedTuple):
    """Drafts of B sequences, D at most."""

    ids: Array  # [B, D]
    confidence: Array  # [B, D]
    available: Array  # [B] drafts of each
    predicted_ms: float  # of the calls


class DraftCalls:
    """Asks the drafters of a batch."""

    def __init__(
        self,
        drafters: dict[str, DrafterEngine],
        described: dict[str, Description],
        target: Description,
        costs: StepCosts | None,
        metrics: Metrics,
    ) -> None:
        """described: the drafters' own descriptions. costs: None where nothing is predicted."""
        self.drafters, self.costs, self.metrics = drafters, costs, metrics
        self.feature_columns = {name: feature_columns(target, drafter) for name, drafter in described.items()}
        self.steps = 0
        self.readers = {name for name, drafter in described.items() if drafter.feature_size or drafter.hosted}

    def run(self, sequences: list[Sequence], limit: Array, prices: Prices, report: StepReport) -> Drafted:
        """limit: [B] drafts that are of use to each. Drafters are asked from the cheapest on, each for those sequences
        for which that is expected to pay; a sequence takes the drafts that are worth most, the first win a tie."""
        self.steps += 1
        full = int(limit.max(initial=0))
        ids = np.full((len(sequences), full), NO_TOKEN, dtype=np.int32)
        confidence = np.zeros((len(sequences), full), dtype=np.float32)
        available = np.zeros(len(sequences), dtype=np.int64)
        worth = np.zeros(len(sequences))
        groups: dict[str, list[int]] = defaultdict(list)
        for i in np.flatnonzero(limit > 0):
            for name in sequences[i].drafters:
                groups[name].append(int(i))
        predicted = 0.0
        for name in sorted(groups, key=lambda name: self.predict_ms(name, len(groups[name]), full)):
            members, depth = self._call(name, sequences, np.array(groups[name]), limit, worth, prices)
            if not depth:
                continue
            group = [sequences[i] for i in members]
            start = time.perf_counter()
            answered, drafted = self._ask(name, group, depth)
            took = (time.perf_counter() - start) * 1e3
            report.draft_ms += took
            if drafted is None:
                continue
            members, group = members[answered], [group[i] for i in answered]
            expected_ms = self.predict_ms(name, len(members), depth)
            predicted += expected_ms
            report.draft_engine_ms += float(drafted.engine_ms[0])
            report.asked += len(members)
            exists = np.logical_and.accumulate(drafted.draft_ids != NO_TOKEN, axis=1).sum(axis=1)
            exists = np.minimum(exists, limit[members])
            useful = np.arange(depth) < exists[:, None]
            value = draft_payoff.worth(survival(drafted.confidence) * useful, prices.row)
            share = prices.ms * expected_ms / len(group)
            for sequence, count, sure in zip(group, exists, drafted.confidence, strict=True):
                sequence.worth[name].see(sure[:count].tolist())
                sequence.worth[name].rate(depth, prices.row, share, prices.max_skipped_steps)
            if self.costs:
                self.costs.saw_draft(name, len(members), depth, took)
            better = (value > worth[members]) | ((available[members] == 0) & (exists > 0))
            chosen = members[better]
            ids[chosen, :depth], confidence[chosen, :depth] = drafted.draft_ids[better], drafted.confidence[better]
            available[chosen], worth[chosen] = exists[better], value[better]
        return Drafted(ids, confidence, available, predicted)

    def _ask(self, name: str, group: list[Sequence], depth: int) -> tuple[list[int], DrafterResult | None]:
        """The drafts of a group, and of whom in it. A call that fails is made again in halves, so that only the
        sequence that makes it fail goes on without this drafter."""
        try:
            drafted = self.drafters[name].step(self._step(name, group, depth))
        except Exception as error:
            if len(group) == 1 or isinstance(error, EngineLostError):
                self._retire(name, group, error)
                return [], None
            log.warning("%s failed for %d sequences, asking in parts: %s", name, len(group), error)
            half = len(group) // 2
            first, early = self._ask(name, group[:half], depth)
            second, late = self._ask(name, group[half:], depth)
            parts = [part for part in (early, late) if part is not None]
            return [*first, *(half + i for i in second)], _joined(parts) if parts else None
        for sequence in group:
            sequence.show(name)
        return list(range(len(group))), drafted

    def predict_ms(self, name: str, batch: int, depth: int) -> float:
        """Time of a call for so many sequences; 0 where nothing is predicted."""
        return self.costs.draft_ms(name, batch, depth) if self.costs else 0.0

    def _call(
        self, name: str, sequences: list[Sequence], members: Array, limit: Array, worth: Array, prices: Prices
    ) -> tuple[Array, int]:
        """Those of the members for whom the drafter is asked in this step, and how deep. worth: [B] of the drafts that
        there are."""

        def cost(count: int, depth: int) -> float:
            return prices.ms * self.predict_ms(name, count, depth)

        full = int(limit[members].max())
        if cost(len(members), full) <= draft_payoff.NEGLIGIBLE * len(members):
            return members, full
        known = [sequences[i].worth[name] for i in members]
        useful = np.arange(full) < limit[members][:, None]
        expected = np.where(useful, [w.expected(full) for w in known], 0.0)
        call = draft_payoff.best_call(draft_payoff.gains(expected, prices.row, worth[members]), cost)
        due = np.array([w.due(self.steps) for w in known])
        depth = max(call.depth, min(draft_payoff.TRY, full)) if due.any() else call.depth
        for w, chosen, has in zip(known, call.members, worth[members] > 0, strict=True):
            if w.pause == 1 and not chosen and not has:  # it pays no more, in this company
                w.lose(prices.max_skipped_steps)
        return members[due | call.members], depth

    def release(self, sequences: list[Sequence]) -> None:
        """Free the slots that the drafters hold for them."""
        for name, drafter in self.drafters.items():
            slots = [s.slot for s in sequences if name in s.seen]
            if slots:
                try:
                    drafter.release(np.array(slots, dtype=np.int32))
                except Exception as error:  # the next sequence in the slot starts at length 0 anyway
                    log.warning("release failed: %s", error)

    def _retire(self, name: str, group: list[Sequence], error: Exception) -> None:
        """A drafter only makes things faster: without it its sequences go on."""
        log.error("%s failed, %d sequences go on without its drafts: %s", name, len(group), error)
        self.metrics.add("angelspec_drafter_failures_total")
        for sequence in group:
            sequence.lose(name)

    def _step(self, name: str, group: list[Sequence], depth: int) -> DrafterStep:
        columns = self.feature_columns[name]
        past = [s.seen.get(name, 0) for s in group]
        following = [s.unseen_tokens(name) for s in group]
        features = [s.unseen_features()[:, columns] for s in group] if len(columns) else []
        return DrafterStep(
            **draft_columns([s.params for s in group]),
            slot=np.array([s.slot for s in group], dtype=np.int32),
            past_length=np.array(past, dtype=np.int32),
            context_count=np.array([len(tokens) for tokens in following], dtype=np.int32),
            features=(
                np.concatenate(features) if features else np.zeros((sum(map(len, following)), 0), dtype=np.float32)
            ),
            token_ids=np.array([t for tokens in following for t in tokens], dtype=np.int32),
            anchor=np.array([s.anchor for s in group], dtype=np.int32),
            depth=np.array([depth], dtype=np.int32),
        )


def _joined(parts: list[DrafterResult]) -> DrafterResult:
    """The answers of several calls as that of one."""
    return DrafterResult(
        draft_ids=np.concatenate([part.draft_ids for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        engine_ms=np.sum([part.engine_ms for part in parts], axis=0),
    )
