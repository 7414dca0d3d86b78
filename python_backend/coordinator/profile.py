"""Measures the cost table through the very calls that serving makes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy as np

from python_backend.budget.cost_table import CostTable, monotone
from python_backend.engine import DrafterEngine, TargetEngine
from python_backend.protocol import Array, Context, DrafterStep, Part, TargetStep

FRACTIONS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
PREFILL_ROWS = 256
LONG_MS = 250.0
JUMP = 2.0  # a point has at most about twice the rows of the one before it

Progress = Callable[[int, int], None]  # (points done, points in all)


def profile(
    target: TargetEngine,
    drafters: dict[str, DrafterEngine],
    slots: int,
    depth: int,
    context_length: int,
    repeats: int,
    progress: Progress,
) -> CostTable:
    """Time verify passes over batch sizes x fractions of drafts, and full-depth draft calls; medians.

    Every slot is first filled with `context_length` tokens, and released at the end. Token values do not matter
    to the time, so they come from a fixed stream.
    """
    vocabulary = target.describe().vocabulary_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, size=slots * (context_length + depth + 1))
    sizes = list(_batch_sizes(slots))
    total = len(sizes) * (len(FRACTIONS) + len(drafters))
    done = 0
    verify: list[tuple[float, ...]] = []
    draft: dict[str, list[float]] = {name: [] for name in drafters}
    first_draft: dict[str, list[float]] = {name: [] for name in drafters}
    feature_sizes = {name: drafter.describe().feature_size for name, drafter in drafters.items()}
    everything = np.arange(slots, dtype=np.int32)
    try:
        filling = [_ms(partial(fill, target, slot, context_length, tokens)) for slot in range(slots)]
        for batch in sizes:
            curve: list[float] = []
            for fraction in FRACTIONS:
                step = verify_step(batch, round(fraction * batch * depth), context_length, tokens)
                curve.append(_median_ms(partial(target.step, step), repeats, curve[-1] if curve else 0.0))
                progress(done := done + 1, total)
            verify.append(monotone(curve))
            for name, drafter in drafters.items():
                for drafts, curve in ((depth, draft[name]), (1, first_draft[name])):
                    # A step at length 0 starts the slots anew, so repeating it is valid.
                    draft_step = _draft_step(batch, feature_sizes[name], drafts, tokens)
                    curve.append(_median_ms(partial(drafter.step, draft_step), repeats))
                progress(done := done + 1, total)
    finally:
        target.release(everything)
        for drafter in drafters.values():
            drafter.release(everything)
    return CostTable(
        depth,
        context_length,
        tuple(sizes),
        FRACTIONS,
        tuple(verify),
        {n: tuple(c) for n, c in draft.items()},
        {n: tuple(np.minimum(c, draft[n]).tolist()) for n, c in first_draft.items()},
        statistics.median(filling) / context_length,
    )


def _batch_sizes(slots: int) -> Iterator[int]:
    size = 1
    while size < slots:
        yield size
        size *= 2
    yield slots


def fill(target: TargetEngine, slot: int, length: int, tokens: Array) -> None:
    """Prefill a slot with `length` rows, chunk by chunk."""
    for past in range(0, length, PREFILL_ROWS):
        rows = min(PREFILL_ROWS, length - past)
        target.step(TargetStep.of([Part(slot, past, tokens[:rows].tolist(), sample=False)]))


def verify_step(batch: int, drafts: int, context_length: int, tokens: Array) -> TargetStep:
    """Drafts spread as evenly as they go."""
    rows = iter(tokens.tolist())
    kept = [drafts // batch + (i < drafts % batch) for i in range(batch)]
    return TargetStep.of([Part(i, context_length, list(islice(rows, 1 + n)), n) for i, n in enumerate(kept)])


def _draft_step(batch: int, feature_size: int, depth: int, tokens: Array) -> DrafterStep:
    """Two fresh context rows a sequence: about what a step commits."""
    context = np.reshape(tokens[: batch * 2], (batch, 2)).tolist()
    features = np.zeros((2, feature_size), dtype=np.float32)
    return DrafterStep.of([Context(slot, 0, rows, features) for slot, rows in enumerate(context)], depth)


def _median_ms(call: Callable[[], object], repeats: int, before: float = 0.0) -> float:
    """before: time of a point with a little less work; what takes far longer was held up, and is measured again."""
    first = _ms(call)
    if LONG_MS < first < JUMP * before:  # arithmetic dominates: neither a warm-up nor a median would change it much
        return first
    return statistics.median(_ms(call) for _ in range(repeats))


def _ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
