"""A target that needs no weights: next-token logits are a fixed function of the last three tokens.

Deterministic, fast, and independent of the engines under test: the oracle for everything above the engines.
"""

from __future__ import annotations

import numpy as np

from python_backend.engine import EngineError
from python_backend.engines.slots import feature_counts
from python_backend.protocol import (
    Array,
    Description,
    DrafterResult,
    DrafterStep,
    PrefixHit,
    PrefixQuery,
    TargetResult,
    TargetStep,
    row_starts,
)
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.verify import accept, logit_rows

VOCABULARY = 96


def toy_logits(context: Array) -> Array:
    """[V] float32: depends on the last three tokens only; peaked enough that drafts can be right."""
    key = [int(t) for t in context[-3:]]
    return (np.random.default_rng([7, *key]).normal(size=VOCABULARY) * 2.5).astype(np.float32)


class ToyTarget:
    """Implements TargetEngine; checks that the coordinator never reads what it has not written."""

    def __init__(self, slots: int = 8, max_length: int = 256, feature_size: int = 0, prefix_block: int = 0) -> None:
        """prefix_block: every block of so many committed tokens is held for ever; 0 = none."""
        self.prefix_block = prefix_block
        self.prefixes: set[tuple[int, ...]] = set()
        self.openings: list[PrefixQuery] = []
        self.history = TokenHistory(slots, max_length)
        self.stored = np.zeros(slots, dtype=np.int64)
        self.feature_size = feature_size
        self.poison: int | None = None  # a token that makes a pass fail
        self.steps: list[TargetStep] = []
        self._slots, self._max_length = slots, max_length

    def describe(self) -> Description:
        return Description(
            name="target",
            role="target",
            engine="toy",
            engine_version="1",
            dtype="float32",
            device="cpu",
            weights_sha256="toy",
            vocabulary_size=VOCABULARY,
            slots=self._slots,
            max_length=self._max_length,
            feature_layers=(0,) if self.feature_size else (),
            feature_size=self.feature_size,
            prefix_block=self.prefix_block,
        )

    def open(self, opening: PrefixQuery) -> PrefixHit:
        opening = PrefixQuery.decode(opening.encode())
        self.openings.append(opening)
        held = np.zeros(len(opening.slot), dtype=np.int32)
        for i, tokens in enumerate(np.split(opening.token_ids, row_starts(opening.row_count)[1:-1])):
            while (end := held[i] + self.prefix_block) < len(tokens) and tuple(tokens[:end]) in self.prefixes:
                held[i] = end
            self.history.tokens[opening.slot[i], : len(tokens)] = tokens
        self.stored[opening.slot] = held
        if not held.any() or not self.feature_size:
            return PrefixHit(held, np.zeros_like(held), np.zeros((0, 0), np.float32))
        features = [np.repeat(np.arange(1, n + 1)[:, None], self.feature_size, axis=1) for n in held]
        return PrefixHit(held, held, np.concatenate(features).astype(np.float32))

    def step(self, step: TargetStep) -> TargetResult:
        step = TargetStep.decode(step.encode())
        self.steps.append(step)
        assert (step.past_length <= self.stored[step.slot]).all(), "reads rows that were never written"
        assert len(set(step.slot.tolist())) == len(step.slot), "a slot twice in one pass"
        if self.poison is not None and (step.token_ids == self.poison).any():
            raise EngineError("poisoned")
        self.history.write(step)
        starts = row_starts(step.row_count)
        owner = np.repeat(np.arange(len(step.slot)), step.row_count)
        position = np.arange(len(step.token_ids)) - starts[owner] + step.past_length[owner]
        wanted = logit_rows(step)
        logits = [toy_logits(self.history.tokens[step.slot[owner[r]], : position[r] + 1]) for r in wanted]
        result = accept(step, np.array(logits, dtype=np.float32).reshape(len(wanted), VOCABULARY), self.history)
        committed = np.where(step.sample, step.row_count - step.draft_count + result.accepted, step.row_count)
        self.stored[step.slot] = step.past_length + committed
        for slot in step.slot if self.prefix_block else ():
            known = self.history.tokens[slot, : self.stored[slot]].tolist()
            ends = range(self.prefix_block, len(known) + 1, self.prefix_block)
            self.prefixes.update(tuple(known[:end]) for end in ends)
        features = [
            np.repeat(position[starts[i] : starts[i] + n, None] + 1, self.feature_size, axis=1)
            for i, n in enumerate(feature_counts(step, committed))
        ]
        return TargetResult(
            accepted=result.accepted,
            next_token=result.next_token,
            feature_count=(
                feature_counts(step, committed.astype(np.int32))
                if self.feature_size
                else np.zeros(len(step.slot), np.int32)
            ),
            features=np.concatenate(features).astype(np.float32) if self.feature_size else np.zeros((0, 0), np.float32),
            log_prob_count=result.log_prob_count,
            log_probs=result.log_probs,
        )

    def release(self, slot: Array) -> None:
        self.stored[slot] = 0


class ToyDrafter:
    """Implements DrafterEngine: knows the toy's law but errs on purpose; follows its context strictly."""

    def __init__(self, slots: int = 8, max_length: int = 256, feature_size: int = 0, right: float = 0.7) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(slots)]
        self.feature_size, self.right = feature_size, right
        self.fail = False
        self._slots, self._max_length = slots, max_length
        self._random = np.random.default_rng(5)

    def describe(self) -> Description:
        return Description(
            name="drafter_toy",
            role="drafter",
            engine="toy",
            engine_version="1",
            dtype="float32",
            device="cpu",
            weights_sha256="",
            vocabulary_size=VOCABULARY,
            slots=self._slots,
            max_length=self._max_length,
            feature_layers=(0,) if self.feature_size else (),
            feature_size=self.feature_size,
            max_depth=16,
        )

    def step(self, step: DrafterStep) -> DrafterResult:
        step = DrafterStep.decode(step.encode())
        if self.fail:
            raise EngineError("drafter is broken")
        starts = row_starts(step.context_count)
        depth = int(step.depth[0])
        ids = np.full((len(step.slot), depth), -1, dtype=np.int32)
        confidence = np.zeros((len(step.slot), depth), dtype=np.float32)
        for i, slot in enumerate(step.slot):
            if step.past_length[i] == 0:
                self.tokens[slot] = []
            context = self.tokens[slot]
            assert len(context) == step.past_length[i], "context rows lost or sent twice"
            if self.feature_size:
                rows = step.features[starts[i] : starts[i + 1], 0]  # the position + 1; all 0 while profiling
                expected = list(range(len(context) + 1, len(context) + 1 + len(rows)))
                assert not rows.any() or rows.tolist() == expected, "features out of place"
            context += step.token_ids[starts[i] : starts[i + 1]].tolist()
            assert context[-1] == step.anchor[i], "the anchor is the last context token"
            known = list(context)
            for k in range(depth):
                draft = int(toy_logits(np.array(known)).argmax())
                if self._random.random() > self.right:
                    draft = int(self._random.integers(VOCABULARY))
                known.append(draft)
                ids[i, k] = draft
                confidence[i, k] = self._random.uniform(0.2, 1.0)
        return DrafterResult(draft_ids=ids, confidence=confidence)

    def release(self, slot: Array) -> None:
        for s in slot:
            self.tokens[s] = []


def toy_decode(prompt: list[int], count: int) -> list[int]:
    """Greedy continuation by the toy's law alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(toy_logits(np.array(tokens)).argmax()))
    return tokens[len(prompt) :]
