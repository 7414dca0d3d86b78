"""What one verify call carries, and parts of it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple, Self

import numpy as np

from python_backend.budget.dcut import Ints
from python_backend.budget.drafts import Drafts
from python_backend.coordinator.scheduler import Batch, Chunk
from python_backend.coordinator.sequence import Sequence
from python_backend.protocol import Array, Part, TargetResult, TargetStep, row_starts
from python_backend.sampling.params import columns


class Share(NamedTuple):
    """What a pass brought one sequence."""

    sequence: Sequence
    rows: int  # committed by it
    tokens: list[int]  # emitted: accepted drafts and the target's own; none of a prompt chunk that is not the last
    features: Array  # [c, F] of the rows; F is 0 without capture
    log_probs: list[float]  # of the tokens, where asked for
    drafted: int = 0
    kept: int = 0
    prompt: bool = False  # rows of a prompt, and no drafts


class VerifyPass(NamedTuple):
    """Decoding sequences with their kept drafts, then prompt chunks: B of the former, in the order of the rows."""

    decoding: list[Sequence]
    chunks: list[Chunk]
    drafts: Drafts
    kept: Ints  # [B] drafts that are verified

    @classmethod
    def of(cls, batch: Batch, drafts: Drafts, kept: Ints) -> Self:
        """Of everyone who runs in a step."""
        return cls(batch.decoding, batch.chunks, drafts, kept)

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
            self.drafts.part(chosen),
            self.kept[chosen],
        )

    def step(self, unread: Array) -> TargetStep:
        """The message. unread: slots whose features nobody reads."""
        sequences = self.sequences
        parts = [
            Part(s.slot, s.cached, [s.anchor, *ids[:kept]], kept)
            for s, ids, kept in zip(self.decoding, self.drafts.ids.tolist(), self.kept.tolist(), strict=True)
        ]
        parts += [
            Part(s.slot, s.cached, s.tokens[s.cached : s.cached + n], sample=s.cached + n == s.prompt_length)
            for s, n in self.chunks
        ]
        sampling = columns([s.params for s in sequences], [s.prompt_length for s in sequences])
        return TargetStep.of(parts, unread=unread, **sampling)

    def shares(self, result: TargetResult) -> Iterator[Share]:
        """What the pass brought each sequence, in the order of the rows."""
        features = np.split(result.features, row_starts(result.feature_count)[1:-1])
        log_probs = np.split(result.log_probs, row_starts(result.log_prob_count)[1:-1])
        for i, sequence in enumerate(self.sequences):
            token, told = int(result.next_token[i]), log_probs[i].tolist()
            if i < len(self.decoding):
                accepted = int(result.accepted[i])
                tokens = [*self.drafts.ids[i, :accepted].tolist(), token]
                drafted, kept = int(self.drafts.available[i]), int(self.kept[i])
                yield Share(sequence, 1 + accepted, tokens, features[i], told, drafted, kept)
            else:
                rows = self.chunks[i - len(self.decoding)].rows
                last = sequence.cached + rows == sequence.prompt_length
                yield Share(sequence, rows, [token] if last else [], features[i], told, prompt=True)
