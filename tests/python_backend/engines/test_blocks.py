"""Every block of the KV cache is free, kept, or used by as many slots as it counts, whatever the slots do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from python_backend.engines.blocks import BlockTables

SLOTS, MAX_LENGTH, BLOCK = 4, 20, 4


class BlockMachine(RuleBasedStateMachine):
    """Sequences over two tokens, so that many begin alike, in a cache that holds the tokens themselves."""

    keep = 6

    def __init__(self) -> None:
        super().__init__()
        self.tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK, self.keep)
        self.cache = np.full((self.tables.pool.count, BLOCK), -1)
        self.history = np.zeros((SLOTS, MAX_LENGTH), dtype=np.int32)
        self.committed = [0] * SLOTS

    @rule(slot=st.integers(0, SLOTS - 1), data=st.data())
    def open(self, slot: int, data: st.DataObject) -> None:
        tokens = np.array(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_LENGTH)), dtype=np.int32)
        held = self.tables.open(slot, tokens)
        assert held % BLOCK == 0
        assert held < len(tokens)
        self.history[slot, : len(tokens)] = tokens
        self.committed[slot] = held

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some slots roll back, write rows and commit a part of them."""
        slots = data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True))
        past = [data.draw(st.integers(0, min(self.committed[s], MAX_LENGTH - 1))) for s in slots]
        rows = [data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_LENGTH - p)) for p in past]
        lengths = [p + len(r) for p, r in zip(past, rows, strict=True)]
        for source, target in self.tables.prepare(np.array(slots), np.array(past), np.array(lengths)):
            self.cache[target] = self.cache[source]
        sealed = Counter(b for s in range(SLOTS) for b in self.tables.table[s, : self.tables.sealed[s]].tolist())
        for slot, first, tokens in zip(slots, past, rows, strict=True):
            count = np.array([len(tokens)])
            block, offset = self.tables.places(np.array([slot]), np.array([first]), count)
            for b in set(block.tolist()):
                assert self.tables.pool.users[b] == 1, "a shared block is written"
                assert b not in sealed, "a sealed block is written"
                assert b not in self.tables.pool.kept, "a kept block is written"
            self.cache[block, offset] = tokens
            self.history[slot, first : first + len(tokens)] = tokens
            self.committed[slot] = data.draw(st.integers(first, first + len(tokens)))
        self.tables.seal(np.array(slots), np.array([self.committed[s] for s in slots]), self.history)

    @rule(slots=st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True))
    def release(self, slots: list[int]) -> None:
        self.tables.release(np.array(slots))
        for slot in slots:
            self.committed[slot] = 0

    @invariant()
    def every_committed_row_is_there(self) -> None:
        everyone = np.arange(SLOTS)
        rows = self.tables.places(everyone, np.zeros(SLOTS, dtype=np.int64), np.array(self.committed))
        expected = [self.history[s, : self.committed[s]] for s in range(SLOTS)]
        np.testing.assert_array_equal(self.cache[rows], np.concatenate(expected))

    @invariant()
    def nothing_is_lost_or_counted_wrongly(self) -> None:
        pool = self.tables.pool
        used = Counter(self.tables.indices(np.arange(SLOTS)).indices.tolist())
        assert pool.users == [used[b] for b in range(pool.count)]
        assert sorted([*used, *pool.free, *pool.kept]) == list(range(pool.count))
        assert len(pool.kept) <= self.keep


class BlockMachineThatKeepsNothing(BlockMachine):
    keep = 0

    @invariant()
    def nothing_is_shared(self) -> None:
        assert max(self.tables.pool.users) <= 1


TestBlocks = BlockMachine.TestCase
TestBlocks.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestBlocksWithoutKeeping = BlockMachineThatKeepsNothing.TestCase
TestBlocksWithoutKeeping.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def fill(tables: BlockTables, slot: int, tokens: list[int], past: int = 0) -> None:
    """Write and commit the rows of these tokens from `past` on."""
    history = np.zeros((SLOTS, MAX_LENGTH), dtype=np.int32)
    history[slot, : len(tokens)] = tokens
    slots, length = np.array([slot]), np.array([len(tokens)])
    tables.prepare(slots, np.array([past]), length)
    tables.seal(slots, length, history)


def blocks_of(tables: BlockTables, slot: int) -> list[int]:
    return tables.indices(np.array([slot])).indices.tolist()


TOKENS = list(range(10, 10 + MAX_LENGTH))


@pytest.fixture
def tables() -> BlockTables:
    return BlockTables(SLOTS, MAX_LENGTH, BLOCK, 6)


def test_a_sequence_begins_with_the_full_blocks_of_one_that_still_runs(tables: BlockTables) -> None:
    fill(tables, 2, TOKENS[:14])
    assert tables.open(0, np.array([*TOKENS[:10], 1, 2], dtype=np.int32)) == 8
    assert blocks_of(tables, 0) == blocks_of(tables, 2)[:2]


def test_the_last_token_of_a_prompt_always_needs_a_row(tables: BlockTables) -> None:
    fill(tables, 2, TOKENS[:8])
    assert tables.open(0, np.array(TOKENS[:8], dtype=np.int32)) == 4
    assert tables.open(1, np.array(TOKENS[:1], dtype=np.int32)) == 0


def test_equal_tokens_after_another_beginning_are_not_the_same_rows(tables: BlockTables) -> None:
    fill(tables, 2, TOKENS[:12])
    other = [*TOKENS[1:5], *TOKENS[4:12]]
    assert tables.open(0, np.array(other, dtype=np.int32)) == 0


def test_a_rollback_into_a_shared_block_goes_on_in_a_copy(tables: BlockTables) -> None:
    fill(tables, 2, TOKENS[:12])
    tables.open(0, np.array(TOKENS[:13], dtype=np.int32))
    before = blocks_of(tables, 2)
    (copy,) = tables.prepare(np.array([0]), np.array([6]), np.array([9]))
    assert copy.source == before[1]
    assert blocks_of(tables, 0)[:2] == [before[0], copy.target]
    assert blocks_of(tables, 2) == before


def test_a_rollback_to_the_border_of_a_block_copies_nothing(tables: BlockTables) -> None:
    fill(tables, 2, TOKENS[:12])
    before = blocks_of(tables, 2)
    assert tables.prepare(np.array([2]), np.array([8]), np.array([12])) == []
    assert blocks_of(tables, 2)[:2] == before[:2]
    assert blocks_of(tables, 2)[2] != before[2]


def test_a_rollback_has_its_copy_even_where_every_block_is_used(tables: BlockTables) -> None:
    for slot in range(SLOTS):
        fill(tables, slot, [slot, *TOKENS[1:]])
    copies = tables.prepare(np.array([1]), np.array([MAX_LENGTH - 1]), np.array([MAX_LENGTH]))
    assert [c.source for c in copies] == [c.target for c in copies]


def test_what_was_not_used_for_longest_is_given_up_first(tables: BlockTables) -> None:
    for slot, first in enumerate((1, 2, 3)):
        fill(tables, slot, [first, *TOKENS[1:8]])
        tables.release(np.array([slot]))

    def held(first: int, slot: int = 0) -> int:
        rows = tables.open(slot, np.array([first, *TOKENS[1:8], 0], dtype=np.int32))
        tables.release(np.array([slot]))
        return rows

    assert [held(f) for f in (1, 2, 3)] == [8, 8, 8]
    held(1)
    fill(tables, 3, [9, *TOKENS[1:8]])
    tables.release(np.array([3]))
    assert [held(f) for f in (2, 3, 1, 9)] == [0, 8, 8, 8]


def test_of_a_beginning_the_end_is_given_up_first(tables: BlockTables) -> None:
    fill(tables, 0, TOKENS[:20])
    tables.release(np.array([0]))
    fill(tables, 1, [1, *TOKENS[1:12]])
    tables.release(np.array([1]))
    assert tables.open(2, np.array([*TOKENS, 0], dtype=np.int32)) == 12


@given(lengths=st.lists(st.integers(1, MAX_LENGTH), min_size=SLOTS, max_size=SLOTS))
def test_every_slot_can_be_full_at_once_whatever_was_kept(lengths: list[int]) -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK, 100)
    for slot, length in enumerate(lengths):
        fill(tables, slot, [slot, *TOKENS[1:length]])
    tables.release(np.arange(SLOTS))
    tables.prepare(np.arange(SLOTS), np.zeros(SLOTS), np.full(SLOTS, MAX_LENGTH))
    assert tables.pool.free == []
    assert not tables.pool.kept


def test_memory_is_touched_only_as_far_as_it_is_needed() -> None:
    tables = BlockTables(SLOTS, MAX_LENGTH, BLOCK)
    for slot in (3, 2, 0):
        tables.prepare(np.array([slot]), np.array([0]), np.array([BLOCK]))
        tables.release(np.array([slot]))
    assert tables.table.max() == 0
