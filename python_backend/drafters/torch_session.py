"""The training networks over the slots of a `TorchContext`: what every other session has to draft like.

Slots are handed on in their order, so that a batch in slots 0..b-1 reads the context without a copy.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.drafting import Started, block_start, recurrent_start
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.recurrent import RecurrentDrafter, State
from python_backend.drafters.session import Append, Asked, Session, check_rows
from python_backend.drafters.torch_context import TorchContext
from python_backend.protocol import Array, row_starts

TOGETHER = 16  # contexts of up to so many rows are appended in one padded pass; longer ones fill the cores alone


class TorchSession:
    """Raises RuntimeError, torch's own, where the device is not there."""

    engine, engine_version = "torch", str(torch.__version__)

    def __init__(self, network: BlockDrafter | RecurrentDrafter, slots: int, rows: int, device: str) -> None:
        """rows: of memory that a slot has. In float32 on a CPU, in bfloat16 elsewhere."""
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.dtype = str(dtype).removeprefix("torch.")
        self.context = TorchContext(network.config, slots, rows, dtype, device)
        network.to(device, dtype).eval()


class TorchBlocks(TorchSession):
    """Context rows become keys and values at once; a block looks at them and at itself."""

    def __init__(self, network: BlockDrafter, slots: int, rows: int, device: str = "cpu") -> None:
        super().__init__(network, slots, rows, device)
        self.network = network

    def append(self, new: Append) -> None:
        starts = row_starts(new.count)
        position = np.arange(starts[-1]) + np.repeat(new.past - starts[:-1], new.count)
        slot, position = self.context.tensor(np.repeat(new.slot, new.count)), self.context.tensor(position)
        for i, rows in enumerate(self.network.context(self.context.floats(new.features), position)):
            self.context.write(i, slot, position, rows)

    def start(self, new: Append, asked: Asked) -> Started:
        self.append(new)
        slot, begin, rows = new.slot[asked.member], new.end[asked.member], self.network.slots(asked.depth)
        position = self.context.tensor(begin[:, None] + np.arange(rows))
        slots, seen = self.context.tensor(slot)[:, None], np.repeat(begin[:, None] + rows, rows, axis=1)

        def attention(layer: int, query: Tensor, own: KeysValues) -> Tensor:
            self.context.write(layer, slots, position, own)
            return self.context.attend(layer, query, slot, seen)

        anchor = self.context.tensor(asked.anchor)
        hidden = self.network.block(anchor, position[:, 0], asked.depth, attention)
        return block_start(self.network, hidden, anchor, asked.candidates)


class TorchChains(TorchSession):
    """Context rows are depth 0 themselves; the last one's state starts the chain."""

    def __init__(self, network: RecurrentDrafter, slots: int, rows: int, device: str = "cpu") -> None:
        super().__init__(network, slots, rows, device)
        self.network = network
        shape = (slots, network.config.hidden_size)
        self.last = State(*(torch.zeros(shape, dtype=self.context.dtype, device=device) for _ in State._fields))

    def append(self, new: Append) -> None:
        check_rows(new)
        starts, short = row_starts(new.count), new.count <= TOGETHER
        features, following = self.context.floats(new.features), self.context.tensor(new.following)
        groups = [np.flatnonzero(short)] if short.any() else []
        for members in (*groups, *np.flatnonzero(~short)[:, None]):
            offset = np.minimum(np.arange(new.count[members].max()), new.count[members, None] - 1)  # the last repeats
            row, position = self.context.tensor(starts[members, None] + offset), new.past[members, None] + offset
            state = self._run(new.slot[members], position, self.network.start(features[row]), following[row])
            slot = self.context.tensor(new.slot[members])
            self.last.output[slot], self.last.carried[slot] = state.output[:, -1], state.carried[:, -1]

    def start(self, new: Append, asked: Asked) -> Started:
        self.append(new)
        slot, begin = new.slot[asked.member], new.end[asked.member]
        slots = self.context.tensor(slot)
        state = State(self.last.output[slots], self.last.carried[slots])
        done = iter(range(asked.depth))

        def attention(layer: int, query: Tensor, own: KeysValues) -> Tensor:  # noqa: ARG001 (part of an interface)
            return self._attend(slot, begin[:, None] + next(done), query, own)

        return recurrent_start(self.network, state, self.context.tensor(begin), attention, asked.candidates)

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


def torch_session(network: BlockDrafter | RecurrentDrafter, slots: int, rows: int, device: str = "cpu") -> Session:
    if isinstance(network, BlockDrafter):
        return TorchBlocks(network, slots, rows, device)
    return TorchChains(network, slots, rows, device)
