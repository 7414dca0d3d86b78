"""How each family of drafters appends context and drafts, over the slots of a `Context`.

`Rows` are neighbours in the order of their slots, so that a batch in slots 0..b-1 reads the cache without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.context import Context
from python_backend.drafters.drafting import Drafted, GoOn, always, walk_block, walk_recurrent
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.pick import Pick
from python_backend.drafters.recurrent import RecurrentDrafter, State
from python_backend.protocol import Array, ProtocolError, row_starts

TOGETHER = 16  # contexts of up to so many rows are appended in one padded pass; longer ones fill the cores alone


@dataclass(frozen=True, eq=False)
class Append:
    """New context rows of b sequences, in the order of their slots."""

    slot: Array  # [b]
    past: Array  # [b] rows that each slot keeps
    count: Array  # [b]
    features: Tensor  # [C, F]
    following: Tensor  # [C] the token after each row


class BlockServing:
    """Context rows become keys and values at once; a block looks at them and at itself."""

    def __init__(self, network: BlockDrafter, context: Context) -> None:
        self.network, self.context = network, context

    def append(self, new: Append) -> None:
        starts = row_starts(new.count)
        position = np.arange(starts[-1]) + np.repeat(new.past - starts[:-1], new.count)
        slot, position = self.context.tensor(np.repeat(new.slot, new.count)), self.context.tensor(position)
        for i, rows in enumerate(self.network.context(new.features, position)):
            self.context.write(i, slot, position, rows)

    def draft(self, slot: Array, anchor: Tensor, depth: int, pick: Pick, go_on: GoOn = always) -> Drafted:
        """anchor: [b] tokens, each right after its slot's context."""
        begin, rows = self.context.stored[slot], self.network.slots(depth)
        position = self.context.tensor(begin[:, None] + np.arange(rows))
        slots, seen = self.context.tensor(slot)[:, None], np.repeat(begin[:, None] + rows, rows, axis=1)

        def attention(layer: int, query: Tensor, own: KeysValues) -> Tensor:
            self.context.write(layer, slots, position, own)
            return self.context.attend(layer, query, slot, seen)

        hidden = self.network.block(anchor, position[:, 0], depth, attention)
        return walk_block(self.network, hidden, anchor, pick, go_on)


class RecurrentServing:
    """Context rows are depth 0 themselves; the last one's state starts the chain."""

    def __init__(self, network: RecurrentDrafter, context: Context) -> None:
        self.network, self.context = network, context
        shape = (context.slots, network.config.hidden_size)
        self.last = State(*(torch.zeros(shape, dtype=context.dtype, device=context.device) for _ in State._fields))

    def append(self, new: Append) -> None:
        """Raises ProtocolError for a sequence without new rows: its chain would have no state to start from."""
        for i in np.flatnonzero(new.count < 1):
            raise ProtocolError(f"tensor 'context_count' is {new.count[i]} for slot {new.slot[i]}, minimum 1")
        starts, short = row_starts(new.count), new.count <= TOGETHER
        groups = [np.flatnonzero(short)] if short.any() else []
        for members in (*groups, *np.flatnonzero(~short)[:, None]):
            offset = np.minimum(np.arange(new.count[members].max()), new.count[members, None] - 1)  # the last repeats
            row = self.context.tensor(starts[members, None] + offset)
            state = self._run(
                new.slot[members],
                new.past[members, None] + offset,
                self.network.start(new.features[row]),
                new.following[row],
            )
            slot = self.context.tensor(new.slot[members])
            self.last.output[slot], self.last.carried[slot] = state.output[:, -1], state.carried[:, -1]

    def draft(self, slot: Array, anchor: Tensor, depth: int, pick: Pick, go_on: GoOn = always) -> Drafted:
        """The anchor follows each slot's last row, which was appended with it."""
        begin = self.context.stored[slot]
        slots = self.context.tensor(slot)
        state = State(self.last.output[slots], self.last.carried[slots])
        done = iter(range(depth))

        def attention(layer: int, query: Tensor, own: KeysValues) -> Tensor:
            position = begin[:, None] + next(done)
            return self._attend(slot, position, query, own)

        return walk_recurrent(self.network, state, self.context.tensor(begin), depth, attention, pick, go_on)

    def _run(self, slot: Array, position: Array, carried: Tensor, following: Tensor) -> State:
        return self.network.run(
            carried,
            following,
            self.context.tensor(position),
            lambda _, query, own: self._attend(slot, position, query, own),
        )

    def _attend(self, slot: Array, position: Array, query: Tensor, own: KeysValues) -> Tensor:
        """Rows [b, q] at their positions: stored, then each sees its slot up to itself."""
        self.context.write(0, self.context.tensor(slot)[:, None], self.context.tensor(position), own)
        return self.context.attend(0, query, slot, position + 1)
