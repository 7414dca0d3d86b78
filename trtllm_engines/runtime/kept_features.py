"""Captured states beside the KV blocks, for the drafter of a sequence that begins with another's rows.

Only so many blocks have them, those that were written or read last: for every block of the pool they would take a third
of the memory of an 8B target's keys and values once more.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.engines.blocks import Copy
from python_backend.protocol import Array


class KeptFeatures:
    """Rows of features of the blocks of a pool, on the device."""

    def __init__(
        self, blocks: int, room: int, block_size: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """blocks: of the pool. room: blocks whose features there is memory for, no fewer than one step touches."""
        self.block_size = block_size
        self.memory = torch.zeros((room, block_size, width), dtype=dtype, device=device)
        self.filled: npt.NDArray[np.int64] = np.zeros(blocks, dtype=np.int64)  # the first so many rows of each are here
        self._place: OrderedDict[int, int] = OrderedDict()  # of each block in memory, the longest untouched first
        self._free = list(range(room))

    def write(self, block: Array, offset: Array, features: Tensor) -> None:
        """features: [C, F] of the rows at (block, offset) [C], packed: rising within a block. Those after them in
        their blocks are no longer valid."""
        blocks, first, count = np.unique(block, return_index=True, return_counts=True)
        place = np.array([self._touch(int(b)) for b in blocks], dtype=np.int64)
        begin = offset[first]
        whole = self.filled[blocks] >= begin  # where rows before them are missing, they are of no use
        self.filled[blocks] = np.where(whole, begin + count, self.filled[blocks])
        row = place[np.searchsorted(blocks, block)] * self.block_size + offset
        self.memory.flatten(0, 1)[self._tensor(row)] = features

    def forget(self, block: Array, offset: Array) -> None:
        """The rows at (block, offset) [C] were written anew, without features."""
        np.minimum.at(self.filled, block, offset)

    def copy(self, copy: Copy) -> None:
        """A block goes on as a copy of another."""
        if self.filled[copy.source] and copy.source != copy.target:
            source = self._touch(copy.source)
            self.memory[self._touch(copy.target)] = self.memory[source]
        self.filled[copy.target] = self.filled[copy.source]

    def whole(self, blocks: Array) -> int:
        """How many of the first of these blocks have all their features here."""
        return int(np.append(self.filled[blocks] < self.block_size, True).argmax())

    def read(self, blocks: Array) -> Tensor:
        """[n * block_size, F] of n whole blocks."""
        place = np.array([self._touch(int(b)) for b in blocks], dtype=np.int64)
        return self.memory[self._tensor(place)].flatten(0, 1)

    def _touch(self, block: int) -> int:
        """Its place in memory; that of the block which was not touched for longest, where there is no other."""
        if block in self._place:
            self._place.move_to_end(block)
            return self._place[block]
        self.filled[block] = 0
        if not self._free:
            oldest, place = self._place.popitem(last=False)
            self.filled[oldest] = 0
            self._free.append(place)
        self._place[block] = self._free.pop()
        return self._place[block]

    def _tensor(self, values: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self.memory.device)
