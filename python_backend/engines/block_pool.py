"""The blocks of a paged KV cache: counted references, and those worth keeping after their last user.

A block that was published under a key is found again by it, also when no sequence uses it any more: it is then *kept*
until its place is needed, the longest unused first. Blocks are taken lowest first, so that memory that was never needed
is never touched.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict


class BlockPool:
    """`count` blocks, of which at most `keep` stay without a user."""

    def __init__(self, count: int, keep: int) -> None:
        self.count = count
        self.keep = keep
        self.users: list[int] = [0] * count
        self.free = list(range(count))  # a heap: sorted already
        self.kept: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._key_of: dict[int, bytes] = {}
        self._by_key: dict[bytes, int] = {}

    def take(self) -> int:
        """A block of one's own, contents undefined. Raises IndexError where every block has a user."""
        if not self.free:
            self._forget(next(iter(self.kept), None))
        block = heapq.heappop(self.free)
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more user of a published block."""
        self.users[block] += 1
        self.kept.pop(block, None)

    def give_back(self, block: int) -> None:
        """One user less. A published block without users is kept, within the limit."""
        self.users[block] -= 1
        if self.users[block]:
            return
        if block not in self._key_of:
            heapq.heappush(self.free, block)
            return
        self.kept[block] = None
        if len(self.kept) > self.keep:
            self._forget(next(iter(self.kept)))

    def publish(self, key: bytes, block: int) -> None:
        """Let the block be found by the key, unless another is already."""
        if self.keep and key not in self._by_key:
            self._by_key[key], self._key_of[block] = block, key

    def find(self, key: bytes) -> int | None:
        """The block that was published under the key."""
        return self._by_key.get(key)

    def _forget(self, block: int | None) -> None:
        """Let a kept block go."""
        if block is not None:
            del self.kept[block]
            del self._by_key[self._key_of.pop(block)]
            heapq.heappush(self.free, block)
