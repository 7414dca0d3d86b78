"""The allocator that the paged KV cache rests on, over thousands of random operations."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engines.blocks import BlockTables
from trtllm_engines.runtime.inputs import block_offsets

SLOTS, MAX_LENGTH, BLOCK, LAYERS = 7, 200, 32, 3
EXAMPLES, OPERATIONS = 40, 250  # 10,000 in all


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32 - 1), greed=st.floats(0.1, 0.95))
def test_no_block_is_leaked_or_used_twice_and_a_rollback_keeps_what_is_below(seed: int, greed: float) -> None:
    """greed: how often a slot grows rather than shrinks or is released."""
    random = np.random.default_rng(seed)
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    lengths = np.zeros(SLOTS, dtype=np.int64)
    for _ in range(OPERATIONS):
        slots = random.permutation(SLOTS)[: random.integers(1, SLOTS + 1)]
        before = tables.table.copy()
        if random.random() < 0.1:
            tables.release(slots)
            lengths[slots] = 0
        else:
            grows = random.random(len(slots)) < greed
            past = np.where(grows, lengths[slots], random.integers(0, lengths[slots] + 1))
            length = np.minimum(past + random.integers(1, 80, len(slots)), MAX_LENGTH)
            past = np.minimum(past, length - 1)
            assert tables.prepare(slots, past, length) == []
            kept = np.minimum(past, lengths[slots]) // BLOCK
            for slot, count in zip(slots, kept, strict=True):
                assert (tables.table[slot, :count] == before[slot, :count]).all()
            lengths[slots] = length
        needed = -(-lengths // BLOCK)
        assert (tables.held == needed).all()
        used = [int(b) for slot in range(SLOTS) for b in tables.table[slot, : needed[slot]]]
        assert sorted(used + list(tables.pool.free)) == list(range(tables.pool.count))


def test_offsets_name_keys_and_values_of_a_block_in_the_first_layer() -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    tables.prepare(np.array([4, 1]), np.array([0, 0]), np.array([33, 5]))
    offsets = block_offsets(tables.table[[1, 4]], LAYERS)
    assert offsets.shape == (1, 2, 2, 7)
    assert offsets[0, 1, :, :2].tolist() == [[0, 6], [1, 7]]
    assert offsets[0, 0, :, 0].tolist() == [12, 13]
