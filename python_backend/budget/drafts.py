"""The drafts of one step, on their way from the drafters through the policy to the verify pass."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from python_backend.budget.dcut import Ints
from python_backend.protocol import NO_TOKEN, Array


class Drafts(NamedTuple):
    """Of B sequences, all drafters together; D drafts at most."""

    ids: Array  # [B, D] int32, NO_TOKEN where there is no draft
    confidence: Array  # [B, D] float32, P(accepted | all before it were)
    available: Ints  # [B] leading drafts that exist and are wanted
    depth: Ints  # [B] drafts at full depth
    draft_ms: float = 0.0  # predicted time of the draft calls

    @classmethod
    def none(cls, depth: Ints, width: int) -> Self:
        """Before any drafter was asked. width: D."""
        batch = len(depth)
        ids = np.full((batch, width), NO_TOKEN, dtype=np.int32)
        return cls(ids, np.zeros((batch, width), dtype=np.float32), np.zeros(batch, dtype=np.int64), depth)

    def part(self, members: list[int]) -> Self:
        """Those of some sequences."""
        return self._replace(
            ids=self.ids[members],
            confidence=self.confidence[members],
            available=self.available[members],
            depth=self.depth[members],
        )

    def take(self, members: Array, ids: Array, confidence: Array, count: Ints) -> None:
        """Write a drafter's drafts in place of those that these members had. ids, confidence: [N, d] with d <= D;
        count: [N] drafts that exist."""
        width = ids.shape[1]
        self.ids[members, :width], self.confidence[members, :width] = ids, confidence
        self.available[members] = count
