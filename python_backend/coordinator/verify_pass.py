"""What one verify call carries, and parts of it."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple, Self

import numpy as np

from python_backend.coordinator.scheduler import Batch, Chunk
from python_backend.coordinator.sequence import Sequence
from python_backend.protocol import Array, TargetStep
from python_backend.sampling.params import columns


class VerifyPass(NamedTuple):
    """Decoding sequences with their kept drafts, then prompt chunks: B of the former, in the order of the rows."""

    decoding: list[Sequence]
    chunks: list[Chunk]
    draft_ids: Array  # [B, D]
    available: Array  # [B] drafts that there were
    kept: Array  # [B] drafts that are verified

    @classmethod
    def of(cls, batch: Batch, draft_ids: Array, available: Array, kept: Array) -> Self:
        return cls(batch.decoding, batch.chunks, draft_ids, available, kept)

    @property
    def sequences(self) -> list[Sequence]:
        """Everyone in the order of the rows."""
        return [*self.decoding, *(chunk.sequence for chunk in self.chunks)]

    def part(self, members: Items[Sequence]) -> VerifyPass:
        """The same pass for some of its sequences."""
        chosen = [i for i, sequence in enumerate(self.decoding) if sequence in members]
        return VerifyPass(
            [self.decoding[i] for i in chosen],
            [chunk for chunk in self.chunks if chunk.sequence in members],
            self.draft_ids[chosen],
            self.available[chosen],
            self.kept[chosen],
        )

    def step(self, unread: Array) -> TargetStep:
        """The message. unread: slots whose features nobody reads."""
        rows: list[list[int]] = []
        for i, sequence in enumerate(self.decoding):
            rows.append([sequence.anchor, *self.draft_ids[i, : self.kept[i]].tolist()])
        for sequence, count in self.chunks:
            rows.append(sequence.tokens[sequence.cached : sequence.cached + count])
        sequences = self.sequences
        sample = [True] * len(self.decoding) + [s.cached + n == s.prompt_length for s, n in self.chunks]
        return TargetStep(
            **columns([s.params for s in sequences], [s.prompt_length for s in sequences]),
            slot=np.array([s.slot for s in sequences], dtype=np.int32),
            past_length=np.array([s.cached for s in sequences], dtype=np.int32),
            row_count=np.array([len(r) for r in rows], dtype=np.int32),
            sample=np.array(sample, dtype=np.bool_),
            draft_count=np.concatenate([self.kept, np.zeros(len(self.chunks), dtype=np.int64)]).astype(np.int32),
            token_ids=np.array([t for r in rows for t in r], dtype=np.int32),
            unread=unread,
        )
