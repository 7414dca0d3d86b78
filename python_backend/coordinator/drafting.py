"""The draft calls of a step: one for each drafter, for all sequences that ask it, and the best of what they say."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from python_backend.budget.cost_table import CostTable
from python_backend.coordinator.handshake import feature_columns
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.report import StepReport
from python_backend.coordinator.sequence import Sequence
from python_backend.engines.base import DrafterEngine, EngineError
from python_backend.protocol import NO_TOKEN, Array, Description, DrafterStep
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
        table: CostTable | None,
        metrics: Metrics,
    ) -> None:
        """described: the drafters' own descriptions. table: None where nothing is predicted."""
        self.drafters, self.table, self.metrics = drafters, table, metrics
        self.feature_columns = {name: feature_columns(target, drafter) for name, drafter in described.items()}
        self.readers = {name for name, drafter in described.items() if drafter.feature_size or drafter.hosted}

    def run(self, sequences: list[Sequence], limit: Array, report: StepReport) -> Drafted:
        """limit: [B] drafts that are of use to each. Where a sequence has several drafters, it takes the drafts of
        which most are expected to be accepted; the first wins a tie."""
        depth = int(limit.max(initial=0))
        ids = np.full((len(sequences), depth), NO_TOKEN, dtype=np.int32)
        confidence = np.zeros((len(sequences), depth), dtype=np.float32)
        available = np.zeros(len(sequences), dtype=np.int64)
        expected = np.zeros(len(sequences))
        groups: dict[str, list[int]] = defaultdict(list)
        for i in np.flatnonzero(limit > 0):
            for name in sequences[i].drafters:
                groups[name].append(int(i))
        predicted = 0.0
        for name, indices in groups.items():
            members = np.array(indices)
            group = [sequences[i] for i in indices]
            start = time.perf_counter()
            try:
                drafted = self.drafters[name].step(self._step(name, group, depth))
            except EngineError as error:
                self._retire(name, group, error)
                continue
            report.draft_ms += (time.perf_counter() - start) * 1e3
            report.draft_engine_ms += float(drafted.engine_ms[0])
            predicted += self.table.draft_ms(name, len(members)) if self.table else 0.0
            exists = np.logical_and.accumulate(drafted.draft_ids != NO_TOKEN, axis=1).sum(axis=1)
            exists = np.minimum(exists, limit[members])
            useful = np.arange(depth) < exists[:, None]
            accepted = (np.cumprod(drafted.confidence, axis=1) * useful).sum(axis=1)
            better = (accepted > expected[members]) | ((available[members] == 0) & (exists > 0))
            chosen = members[better]
            ids[chosen], confidence[chosen] = drafted.draft_ids[better], drafted.confidence[better]
            available[chosen], expected[chosen] = exists[better], accepted[better]
        return Drafted(ids, confidence, available, predicted)

    def release(self, sequences: list[Sequence]) -> None:
        """Free the slots that the drafters hold for them."""
        for name, drafter in self.drafters.items():
            slots = [s.slot for s in sequences if name in s.seen]
            if slots:
                try:
                    drafter.release(np.array(slots, dtype=np.int32))
                except EngineError as error:  # the next sequence in the slot starts at length 0 anyway
                    log.warning("release failed: %s", error)

    def _retire(self, name: str, group: list[Sequence], error: EngineError) -> None:
        """A drafter only makes things faster: without it its sequences go on."""
        log.error("%s failed, %d sequences go on without its drafts: %s", name, len(group), error)
        self.metrics.add("angelspec_drafter_failures_total")
        for sequence in group:
            sequence.lose(name)

    def _step(self, name: str, group: list[Sequence], depth: int) -> DrafterStep:
        columns = self.feature_columns[name]
        past = [s.seen.get(name, 0) for s in group]
        following = [s.take_tokens(name) for s in group]
        features = [s.take_features()[:, columns] for s in group] if len(columns) else []
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
