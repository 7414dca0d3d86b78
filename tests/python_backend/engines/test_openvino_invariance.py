"""With `target.invariant`, a sequence's logits are the same bits whatever else is in the pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.engines.openvino_engine import OpenVinoEngine
from python_backend.engines.openvino_rows import INVARIANT, cut
from python_backend.protocol import Part
from tests.support.checkpoints import make_step
from tests.support.openvino_targets import all_logits, load_openvino

SLOTS, CONTEXTS, ROWS = 20, (40, 700), 12
MATES = range(2, SLOTS)


@pytest.fixture(scope="module")
def engine(embedded: Path) -> OpenVinoEngine:
    engine = load_openvino(embedded, SLOTS, 1024, invariant=True)
    for slot in MATES:
        all_logits(engine, Part(slot, 0, tokens((30, 100, 250)[slot % 3], seed=slot)))
    return engine


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 49152, count).tolist()


def decode(engine: OpenVinoEngine, slot: int, context: int, rows: int, mates: list[Part]) -> Any:
    """[ROWS, V] logits of the rows after the context, `rows` a step, beside others and not always first."""
    text, logits = tokens(context + ROWS), []
    for at in range(context, context + ROWS, rows):
        part = Part(slot, at, text[at : min(at + rows, context + ROWS)])
        before = mates[: at % (len(mates) + 1)]
        first = sum(len(p.tokens) for p in before)
        everything = all_logits(engine, *before, part, *mates[len(before) :])
        logits.append(everything[first : first + len(part.tokens)])
    return np.concatenate(logits)


@pytest.mark.parametrize("context", CONTEXTS)
def test_decode_verify_batch_and_prefill_shapes_give_the_same_bits(engine: OpenVinoEngine, context: int) -> None:
    text = tokens(context + ROWS)
    all_logits(engine, Part(0, 0, text[:context]))
    expected = decode(engine, 0, context, 8, [])
    one = [Part(s, 30, tokens(1, s)) for s in MATES]
    four = [Part(s, 30, tokens(4, s)) for s in MATES]
    ragged = [Part(s, 30, tokens(1 + s % 7, s)) for s in MATES]
    prefill = [Part(2, 30, tokens(200))]
    for rows, mates in [(1, []), (2, []), (5, []), (1, one), (4, four), (3, ragged), (1, prefill), (4, prefill)]:
        actual = decode(engine, 0, context, rows, mates)
        assert np.array_equal(actual, expected), f"{rows} rows beside {len(mates)} others"
    for chunk in (100, 17):
        for at in range(0, context, chunk):
            all_logits(engine, Part(1, at, text[at : min(at + chunk, context)]))
        assert np.array_equal(decode(engine, 1, context, 8, []), expected), f"prompt in chunks of {chunk}"


def test_without_it_a_row_alone_rounds_differently(embedded: Path) -> None:
    """The control: what invariance removes is there, and is no more than rounding."""
    engine = load_openvino(embedded, 1, 256)
    all_logits(engine, Part(0, 0, tokens(40)[:40]))
    alone, together = decode(engine, 0, 40, 1, []), decode(engine, 0, 40, 8, [])
    assert 0 < np.abs(alone - together).max() < 1e-3


def test_pieces_cover_a_step_in_order_within_the_limit() -> None:
    step = make_step(Part(4, 7, [1] * 3), Part(0, 0, [2] * 150), Part(2, 9, [3]))
    pieces = list(cut(step, INVARIANT.most))
    assert [(p.first, p.last) for p in pieces] == [(0, 64), (64, 128), (128, 154)]
    assert [p.slot.tolist() for p in pieces] == [[4, 0], [0], [0, 2]]
    assert [p.past.tolist() for p in pieces] == [[7, 0], [61], [125, 9]]
    assert [p.count.tolist() for p in pieces] == [[3, 61], [64], [25, 1]]
