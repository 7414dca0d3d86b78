"""The draft calls of a step: one for each drafter, for all sequences that ask it."""

from __future__ import annotations

import logging
import time

import numpy as np

from python_backend.budget import draft_payoff
from python_backend.budget.costs import StepCosts
from python_backend.budget.dcut import Ints
from python_backend.budget.draft_payoff import Prices
from python_backend.budget.drafts import Drafts
from python_backend.checks import feature_columns
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.offers import Answer, Offers
from python_backend.coordinator.report import StepReport
from python_backend.coordinator.sequence import Sequence
from python_backend.engine import DrafterEngine, EngineLostError
from python_backend.protocol import Context, Description, DrafterResult, DrafterStep
from python_backend.sampling.params import draft_columns

log = logging.getLogger(__name__)


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

    def run(self, sequences: list[Sequence], limit: Ints, prices: Prices, report: StepReport) -> Drafts:
        """limit: [B] drafts that are of use to each. Drafters are asked from the cheapest on, each for those sequences
        for which that is expected to pay; a sequence takes the drafts that are worth most, the first win a tie."""
        self.steps += 1
        offers = Offers(sequences, limit, prices)
        groups, predicted_ms = offers.groups(), 0.0
        for name in sorted(groups, key=lambda name: self.predict_ms(name, len(groups[name]), offers.width)):
            members, depth = self._choose(name, groups[name], offers)
            answer = self._call(name, members, depth, offers, report) if depth else None
            if answer:
                expected_ms = self.predict_ms(name, len(answer.members), depth)
                predicted_ms += expected_ms
                offers.rate(answer, expected_ms)
                offers.take(answer)
        return offers.drafts._replace(draft_ms=predicted_ms)

    def _call(self, name: str, members: Ints, depth: int, offers: Offers, report: StepReport) -> Answer | None:
        """Ask, and note how long that took. None where the drafter answered for nobody."""
        start = time.perf_counter()
        answered, drafted = self._ask(name, [offers.sequences[i] for i in members], depth)
        took = (time.perf_counter() - start) * 1e3
        report.draft_ms += took
        if drafted is None:
            return None
        report.draft_engine_ms += float(drafted.engine_ms[0])
        report.asked += len(answered)
        if self.costs:
            self.costs.saw_draft(name, len(answered), depth, took)
        return Answer.of(name, members[answered], drafted, offers.limit)

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

    def _choose(self, name: str, members: Ints, offers: Offers) -> tuple[Ints, int]:
        """Those of the members for whom the drafter is asked in this step, and how deep."""
        prices, limit, worth = offers.prices, offers.limit[members], offers.worth[members]

        def cost(count: int, depth: int) -> float:
            return prices.ms * self.predict_ms(name, count, depth)

        width = int(limit.max())
        if cost(len(members), width) <= draft_payoff.NEGLIGIBLE * len(members):
            return members, width
        known = [offers.sequences[i].worth[name] for i in members]
        useful = np.arange(width) < limit[:, None]
        expected = np.where(useful, [w.expected(width) for w in known], 0.0)
        call = draft_payoff.best_call(draft_payoff.gains(expected, prices.row, worth), cost)
        due = np.array([w.due(self.steps) for w in known])
        depth = max(call.depth, min(draft_payoff.TRY, width)) if due.any() else call.depth
        for w, chosen, has in zip(known, call.members, worth > 0, strict=True):
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
        contexts = [
            Context(
                s.slot,
                s.seen.get(name, 0),
                s.unseen_tokens(name),
                s.unseen_features()[:, columns] if len(columns) else None,
                s.anchor,
            )
            for s in group
        ]
        return DrafterStep.of(contexts, depth, **draft_columns([s.params for s in group]))


def _joined(parts: list[DrafterResult]) -> DrafterResult:
    """The answers of several calls as that of one."""
    return DrafterResult(
        draft_ids=np.concatenate([part.draft_ids for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        engine_ms=np.sum([part.engine_ms for part in parts], axis=0),
    )
