"""Which blocks of the KV cache each slot owns.

A slot owns exactly the blocks that its rows need: a longer pass takes blocks, a rollback gives them back. Blocks are
taken lowest first, so that memory that was never needed is never touched.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.protocol import Array, row_starts


class BlockIndices(NamedTuple):
    """The blocks of the sequences of one pass, packed."""

    indices: npt.NDArray[np.int32]  # [sum of each sequence's blocks]
    begins: npt.NDArray[np.int32]  # [B + 1]


class BlockTables:
    """A block table per slot, [slots, blocks of the longest sequence], over one pool that is large enough for all."""

    def __init__(self, slots: int, max_length: int, block_size: int) -> None:
        per_slot = -(-max_length // block_size)
        self.block_size = block_size
        self.count = slots * per_slot
        self.free = list(range(self.count))  # a heap: sorted already
        self.held: npt.NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self.table: npt.NDArray[np.int32] = np.zeros((slots, per_slot), dtype=np.int32)

    def resize(self, slot: Array, length: Array) -> None:
        """Let each slot own the blocks for its first `length` rows; blocks that it keeps keep their contents."""
        needed = -(-length.astype(np.int64) // self.block_size)
        for i in np.flatnonzero(needed != self.held[slot]):
            self._resize(int(slot[i]), int(needed[i]))

    def release(self, slot: Array) -> None:
        """Take every block of the slots back."""
        for s in slot:
            self._resize(int(s), 0)

    def indices(self, slot: Array) -> BlockIndices:
        """The blocks of each sequence, in the order of its rows."""
        held = self.held[slot]
        owned = np.arange(self.table.shape[1]) < held[:, None]
        return BlockIndices(self.table[slot][owned], row_starts(held).astype(np.int32))

    def _resize(self, slot: int, needed: int) -> None:
        held = int(self.held[slot])
        for i in range(held, needed):
            self.table[slot, i] = heapq.heappop(self.free)
        for block in self.table[slot, needed:held]:
            heapq.heappush(self.free, int(block))
        self.held[slot] = needed
