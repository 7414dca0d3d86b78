"""Prompt lookup (Saxena, 2023): the tokens that followed the last occurrence of the current n-gram, as drafts.

No network and no training: it pays where the output repeats the prompt or itself. Its confidence comes from its own
hits: how often a draft at depth k, found by an n-gram of this length, turned out right. Greedy text repeats itself far
more than sampled text, so they are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from python_backend.protocol import NO_TOKEN, Array, Description, DrafterResult, DrafterStep, ProtocolError, row_starts

PRIOR_WEIGHT = 8.0  # trials that the prior counts for
PRIOR_FIRST = {1: 0.2, 2: 0.4, 3: 0.6}  # P(first draft is right) by n-gram length; longer ones 0.7
PRIOR_LATER = 0.75  # P(right | those before were right)


class Found(NamedTuple):
    """Drafts of one sequence."""

    drafts: list[int]
    ngram: int  # length of the one that found them
    sampled: bool  # temperature above 0


NOTHING = Found([], 0, False)


class HitStatistics:
    """Conditional hit rates by (sampled or greedy, n-gram length, depth), shared by all sequences; a beta prior keeps
    them sane early."""

    def __init__(self, max_ngram: int, max_depth: int) -> None:
        first = [PRIOR_FIRST.get(n, 0.7) for n in range(1, max_ngram + 1)]
        prior = np.full((max_ngram + 1, max_depth), PRIOR_LATER)
        prior[1:, 0] = first
        self._hits = np.stack([prior, prior]) * PRIOR_WEIGHT
        self._trials = np.full_like(self._hits, PRIOR_WEIGHT)

    def confidence(self, found: Found) -> Array:
        """[drafts] P(draft k is right | all before it were)."""
        row = int(found.sampled), found.ngram, slice(len(found.drafts))
        confidence: Array = self._hits[row] / self._trials[row]
        return confidence

    def record(self, found: Found, actual: list[int]) -> None:
        """Compare drafts with the tokens that really came, up to the first miss."""
        hits, trials = (counts[int(found.sampled), found.ngram] for counts in (self._hits, self._trials))
        for k, (draft, token) in enumerate(zip(found.drafts, actual, strict=False)):
            trials[k] += 1
            hits[k] += draft == token
            if draft != token:
                break


@dataclass
class SlotContext:
    """Committed tokens of one slot, where each n-gram ended last, and the drafts that wait for their verdict.

    Token 0 of a sequence never reaches a drafter (context rows carry the token that follows them), so index j here
    is position j + 1.
    """

    tokens: list[int] = field(default_factory=list)
    last_end: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> index after its last occurrence
    pending: Found = NOTHING


class PromptLookup:
    """A DrafterEngine without a network."""

    def __init__(
        self, name: str, slots: int, max_length: int, max_depth: int, min_ngram: int = 1, max_ngram: int = 4
    ) -> None:
        if min_ngram > max_ngram:
            raise ValueError(f"min_ngram is {min_ngram}, above max_ngram {max_ngram}")
        self._name, self._slots, self._max_length, self._max_depth = name, slots, max_length, max_depth
        self._lengths = range(min_ngram, max_ngram + 1)
        self._contexts = [SlotContext() for _ in range(slots)]
        self._statistics = HitStatistics(max_ngram, max(1, max_depth))

    def describe(self) -> Description:
        return Description(
            name=self._name,
            role="drafter",
            engine="prompt_lookup",
            engine_version="1",
            dtype="none",
            device="cpu",
            weights_sha256="",
            vocabulary_size=0,
            slots=self._slots,
            max_length=self._max_length,
            feature_layers=(),
            feature_size=0,
            max_depth=self._max_depth,
        )

    def step(self, step: DrafterStep) -> DrafterResult:
        """Append the context of every sequence, then look up drafts for those with an anchor."""
        depth = min(int(step.depth[0]), self._max_depth)
        starts = row_starts(step.context_count)
        ids = np.full((len(step.slot), int(step.depth[0])), NO_TOKEN, dtype=np.int32)
        confidence = np.zeros(ids.shape, dtype=np.float32)
        for i, slot in enumerate(step.slot):
            tokens = step.token_ids[starts[i] : starts[i + 1]].tolist()
            context = self._append(int(slot), int(step.past_length[i]), tokens)
            if step.anchor[i] == NO_TOKEN:
                continue
            found = context.pending = self._look_up(context, depth, sampled=bool(step.temperature[i] > 0))
            ids[i, : len(found.drafts)] = found.drafts
            confidence[i, : len(found.drafts)] = self._statistics.confidence(found)
        return DrafterResult(draft_ids=ids, confidence=confidence)

    def release(self, slot: Array) -> None:
        for s in slot:
            self._contexts[s] = SlotContext()

    def _append(self, slot: int, past: int, tokens: list[int]) -> SlotContext:
        """The context of a slot, new tokens appended. Length 0 starts a new sequence; no other rollback exists."""
        if not 0 <= slot < self._slots:
            raise ProtocolError(f"tensor 'slot' is {slot}, limit {self._slots - 1}")
        if past == 0:
            self._contexts[slot] = SlotContext()
        context = self._contexts[slot]
        if past != len(context.tokens):
            raise ProtocolError(
                f"tensor 'past_length' is {past} for slot {slot}, which holds {len(context.tokens)} rows"
            )
        if past + len(tokens) > self._max_length:
            raise ProtocolError(f"slot {slot} would hold {past + len(tokens)} rows, limit {self._max_length}")
        self._statistics.record(context.pending, tokens)
        context.pending = NOTHING
        for token in tokens:
            # The n-grams that end just before this token are followed by it: index them now, not the one at the end.
            self._index(context)
            context.tokens.append(token)
        return context

    def _index(self, context: SlotContext) -> None:
        end = len(context.tokens)
        for n in self._lengths:
            if n <= end:
                context.last_end[tuple(context.tokens[end - n :])] = end

    def _look_up(self, context: SlotContext, depth: int, sampled: bool) -> Found:
        """The longest n-gram that occurred before wins."""
        tokens = context.tokens
        for n in reversed(self._lengths):
            if n <= len(tokens) and (start := context.last_end.get(tuple(tokens[-n:]))) is not None:
                # A match that reaches the end repeats with its own period.
                period = len(tokens) - start
                return Found([tokens[start + k % period] for k in range(depth)], n, sampled)
        return NOTHING
