"""Which blocks of a paged KV cache each slot uses, and which of them it shares.

A slot uses exactly the blocks that its rows need: a longer pass takes blocks, a rollback gives them back. Once all rows
of a block are committed it is *sealed*: never written again, and free to be shared with any sequence that begins with
the same tokens. A rollback into a sealed block therefore goes on in a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.engines.block_pool import BlockPool
from python_backend.protocol import Array, row_starts
from python_backend.rows import row_owners


class BlockIndices(NamedTuple):
    """The blocks of the sequences of one pass, packed."""

    indices: npt.NDArray[np.int32]  # [sum of each sequence's blocks]
    begins: npt.NDArray[np.int32]  # [B + 1]


class Copy(NamedTuple):
    """A block whose contents the cache must copy into another before the next pass; in the order given."""

    source: int
    target: int


class BlockTables:
    """A block table per slot, [slots, blocks of the longest sequence], over one pool that is large enough for all."""

    def __init__(self, slots: int, max_length: int, block_size: int, keep: int = 0) -> None:
        """keep: blocks of ended sequences that are kept for others to begin with; 0 = nothing is ever shared."""
        per_slot = -(-max_length // block_size)
        self.block_size = block_size
        self.pool = BlockPool(slots * per_slot, keep)
        self.held: npt.NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self.sealed: npt.NDArray[np.int64] = np.zeros(slots, dtype=np.int64)  # the first so many of those held
        self.table: npt.NDArray[np.int32] = np.zeros((slots, per_slot), dtype=np.int32)
        self._keys: list[list[bytes]] = [[] for _ in range(slots)]  # of the sealed blocks

    def open(self, slot: int, tokens: npt.NDArray[np.int32]) -> int:
        """Begin a sequence with the rows that are there of its tokens; returns how many.

        tokens: [n] int32. The last one always needs a row of its own: its logits are wanted.
        """
        self._resize(slot, 0)
        for key in self._chain(b"", tokens[: max(0, len(tokens) - 1)]):
            block = self.pool.find(key)
            if block is None:
                break
            self.pool.share(block)
            self.table[slot, self.held[slot]] = block
            self.held[slot] += 1
            self._keys[slot].append(key)
        self.sealed[slot] = self.held[slot]
        return int(self.held[slot]) * self.block_size

    def prepare(self, slot: Array, past: Array, length: Array) -> list[Copy]:
        """Let each slot use the blocks of its first `length` rows, those from row `past` on alone.

        Rows before `past` keep their contents, once the cache has made the copies that are returned.
        """
        needed = -(-length.astype(np.int64) // self.block_size)
        sealed = self.sealed[slot]
        copies = []
        for i in np.flatnonzero((needed != self.held[slot]) | (past < sealed * self.block_size)):
            s, rows = int(slot[i]), int(past[i])
            whole, partly = divmod(rows, self.block_size)
            if whole < sealed[i]:
                if partly:
                    copies.append(self._replace(s, whole))
                else:
                    self._resize(s, whole)
            self._resize(s, int(needed[i]))
        return copies

    def seal(self, slot: Array, length: Array, tokens: npt.NDArray[np.int32]) -> None:
        """Rows before `length` are committed: share the blocks that are full.

        tokens: [slots, max_length] int32, what the rows of each slot hold.
        """
        if not self.pool.keep:
            return
        full = length // self.block_size
        for i in np.flatnonzero(full > self.sealed[slot]):
            s, first, last = int(slot[i]), int(self.sealed[slot[i]]), int(full[i])
            keys = self._keys[s]
            new = tokens[s, first * self.block_size : last * self.block_size]
            for block, key in enumerate(self._chain(keys[-1] if keys else b"", new), start=first):
                self.pool.publish(key, int(self.table[s, block]))
                keys.append(key)
            self.sealed[s] = last

    def release(self, slot: Array) -> None:
        """Take every block of the slots back."""
        for s in slot:
            self._resize(int(s), 0)

    def indices(self, slot: Array) -> BlockIndices:
        """The blocks of each sequence, in the order of its rows."""
        held = self.held[slot]
        owned = np.arange(self.table.shape[1]) < held[:, None]
        return BlockIndices(self.table[slot][owned], row_starts(held).astype(np.int32))

    def places(self, slot: Array, past: Array, count: Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """(block, row in it) of each of `count` rows from row `past` on of every slot, packed."""
        owner, offset = row_owners(count)
        row = past[owner] + offset
        return self.table[slot[owner], row // self.block_size], row % self.block_size

    def _chain(self, parent: bytes, tokens: npt.NDArray[np.int32]) -> Iterator[bytes]:
        """The key of each full block: a digest of all tokens up to its end."""
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            block = tokens[end - self.block_size : end]
            parent = hashlib.blake2b(parent + block.tobytes(), digest_size=16).digest()
            yield parent

    def _resize(self, slot: int, needed: int) -> None:
        held = int(self.held[slot])
        for i in range(held, needed):
            self.table[slot, i] = self.pool.take()
        for block in reversed(self.table[slot, needed:held].tolist()):  # of a prefix, the end is given up first
            self.pool.give_back(block)
        self.held[slot] = needed
        if needed < self.sealed[slot]:
            self.sealed[slot] = needed
            del self._keys[slot][needed:]

    def _replace(self, slot: int, index: int) -> Copy:
        """Go on in a copy of a sealed block; it and those after it are given back.

        Before the copy is taken, so that there is always a block for it, be it the same one. Copies are made in order:
        a block that another slot takes as a target is copied from before it is copied into.
        """
        source = int(self.table[slot, index])
        self._resize(slot, index)
        self._resize(slot, index + 1)
        return Copy(source, int(self.table[slot, index]))
