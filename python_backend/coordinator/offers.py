"""What drafters offer the sequences of a step, and who takes what."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, Self

import numpy as np

from python_backend.budget import draft_payoff
from python_backend.budget.dcut import Ints, survival
from python_backend.budget.draft_payoff import Prices
from python_backend.budget.drafts import Drafts
from python_backend.coordinator.sequence import Sequence
from python_backend.protocol import NO_TOKEN, DrafterResult


class Answer(NamedTuple):
    """What a drafter drafted for N sequences of the batch, d drafts at most."""

    drafter: str
    members: Ints  # [N] indices into the batch
    result: DrafterResult  # ids and confidences [N, d]
    lengths: Ints  # [N] leading drafts that exist and are of use

    @classmethod
    def of(cls, drafter: str, members: Ints, result: DrafterResult, limit: Ints) -> Self:
        """limit: [B] drafts that are of use to each sequence of the batch."""
        exist = np.logical_and.accumulate(result.draft_ids != NO_TOKEN, axis=1).sum(axis=1)
        return cls(drafter, members, result, np.minimum(exist, limit[members]))

    @property
    def depth(self) -> int:
        """d."""
        return self.result.draft_ids.shape[1]


class Offers:
    """The best drafts so far, of B sequences."""

    def __init__(self, sequences: list[Sequence], limit: Ints, prices: Prices) -> None:
        """limit: [B] drafts that are of use to each."""
        self.sequences, self.limit, self.prices = sequences, limit, prices
        self.width = int(limit.max(initial=0))
        depth = np.array([s.depth if n else 0 for s, n in zip(sequences, limit, strict=True)], dtype=np.int64)
        self.drafts = Drafts.none(depth, self.width)
        self.worth = np.zeros(len(sequences))  # tokens that its drafts bring each

    def groups(self) -> dict[str, Ints]:
        """Who could ask each drafter: indices into the batch."""
        members: dict[str, list[int]] = defaultdict(list)
        for i in np.flatnonzero(self.limit > 0).tolist():
            for name in self.sequences[i].drafters:
                members[name].append(i)
        return {name: np.array(indices) for name, indices in members.items()}

    def rate(self, answer: Answer, call_ms: float) -> None:
        """Each sequence learns whether such drafts are worth its share of the call."""
        share = self.prices.ms * call_ms / len(answer.members)
        for i, count, confidence in zip(answer.members, answer.lengths, answer.result.confidence, strict=True):
            known = self.sequences[i].worth[answer.drafter]
            known.see(confidence[:count].tolist())
            known.rate(answer.depth, self.prices.row, share, self.prices.max_skipped_steps)

    def take(self, answer: Answer) -> None:
        """A sequence takes them where they are worth more than those that it has, or are its first."""
        useful = np.arange(answer.depth) < answer.lengths[:, None]
        worth = draft_payoff.worth(survival(answer.result.confidence) * useful, self.prices.row)
        first = (self.drafts.available[answer.members] == 0) & (answer.lengths > 0)
        better = first | (worth > self.worth[answer.members])
        takers = answer.members[better]
        self.drafts.take(
            takers, answer.result.draft_ids[better], answer.result.confidence[better], answer.lengths[better]
        )
        self.worth[takers] = worth[better]
