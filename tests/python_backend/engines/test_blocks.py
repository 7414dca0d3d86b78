"""Every block of the KV cache belongs to one slot or is free, whatever the slots do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engines.blocks import BlockTables

SLOTS, MAX_LENGTH, BLOCK = 5, 100, 32


def check(tables: BlockTables, lengths: dict[int, int]) -> None:
    slots = np.array(sorted(lengths))
    packed = tables.indices(slots)
    owned = [packed.indices[a:b].tolist() for a, b in zip(packed.begins[:-1], packed.begins[1:], strict=True)]
    assert [len(blocks) for blocks in owned] == [-(-lengths[s] // BLOCK) for s in slots.tolist()]
    every = [block for blocks in owned for block in blocks] + tables.free
    assert sorted(every) == list(range(tables.count))


@given(data=st.data())
def test_no_block_is_leaked_or_owned_twice(data: st.DataObject) -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    lengths = dict.fromkeys(range(SLOTS), 0)
    for _ in range(data.draw(st.integers(1, 12))):
        slots = data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True))
        if data.draw(st.booleans()):
            new = data.draw(st.lists(st.integers(1, MAX_LENGTH), min_size=len(slots), max_size=len(slots)))
            tables.resize(np.array(slots), np.array(new))
            lengths |= dict(zip(slots, new, strict=True))
        else:
            tables.release(np.array(slots))
            lengths |= dict.fromkeys(slots, 0)
        check(tables, lengths)


def test_every_slot_can_be_full_at_once() -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    tables.resize(np.arange(SLOTS), np.full(SLOTS, MAX_LENGTH))
    assert tables.free == []


def test_growing_and_rolling_back_keep_the_blocks_below() -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    slots = np.array([3, 1])
    tables.resize(slots, np.array([40, 70]))
    before = tables.indices(slots[:1]).indices.tolist()
    tables.resize(slots, np.array([100, 10]))
    assert tables.indices(slots[:1]).indices.tolist()[:2] == before
    tables.resize(slots, np.array([64, 10]))
    assert tables.indices(slots[:1]).indices.tolist() == before


def test_memory_is_touched_only_as_far_as_it_is_needed() -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    for slot in (4, 2, 0):
        tables.resize(np.array([slot]), np.array([BLOCK]))
        tables.release(np.array([slot]))
    assert tables.table.max() == 0
