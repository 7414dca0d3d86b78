"""A drafter's built engines as a session, over the same memory as the torch networks.

An engine reads context as one dense tensor, so a draft begins with a copy of the rows that its sequences hold, as long
as the longest of them. Rows of the draft itself go into that copy alone: nothing has to be rolled back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from python_backend.drafters.contract import candidates
from python_backend.drafters.drafting import Shortlist, Started
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.session import Append, Asked, check_rows
from python_backend.drafters.torch_context import TorchContext
from python_backend.protocol import Array, row_starts
from trtllm_engines.pin import CHUNK, LONG_CHUNK
from trtllm_engines.runtime.graph_session import GraphSession

ROOM = 64  # rows that the copied context grows by: the fewer shapes there are, the less often an engine is told


class Graphs:
    """A drafter's engines by name, with the tensors that all of them borrow."""

    def __init__(self, sessions: Mapping[str, GraphSession], lent: Mapping[str, Tensor]) -> None:
        self.sessions, self._lent = sessions, lent

    def __contains__(self, name: str) -> bool:
        return name in self.sessions

    def __call__(self, name: str, **inputs: Tensor) -> dict[str, Tensor]:
        """The outputs of a pass; inputs that the graph does not have are left out."""
        session = self.sessions[name]
        given = {**inputs, **self._lent}
        return session.run({port.name: given[port.name] for port in session.contract.inputs if port.name in given})


class EngineSession:
    """Drafts by built TensorRT engines, in the target's process."""

    engine = "tensorrt"

    def __init__(self, run: Graphs, context: TorchContext, engine_version: str) -> None:
        self.run, self.config, self.context = run, context.config, context
        self.dtype, self.engine_version = str(context.dtype).removeprefix("torch."), engine_version


class BlockEngines(EngineSession):
    """Context rows become keys and values at once; a block looks at them and at itself."""

    def __init__(self, run: Graphs, context: TorchContext, engine_version: str, rows: int) -> None:
        """rows: most context rows of one pass."""
        super().__init__(run, context, engine_version)
        self.rows = rows

    def append(self, new: Append) -> None:
        starts = row_starts(new.count)
        position = self.context.tensor(np.arange(starts[-1]) + np.repeat(new.past - starts[:-1], new.count))
        slot, features = self.context.tensor(np.repeat(new.slot, new.count)), self.context.floats(new.features)
        for first in range(0, int(starts[-1]), self.rows):
            piece = slice(first, first + self.rows)
            rows = self.run("context", features=features[piece], position=position[piece])
            for i in range(self.config.layers):
                keys_values = KeysValues(rows[f"keys_{i}"], rows[f"values_{i}"])
                self.context.write(i, slot[piece], position[piece], keys_values)

    def start(self, new: Append, asked: Asked) -> Started:
        """The engine drafts a whole block, as it was trained; of that the first drafts are taken."""
        self.append(new)
        slot, begin, anchor = new.slot[asked.member], new.end[asked.member], self.context.tensor(asked.anchor)
        held = held_context(self.context, slot, int(begin.max()))
        block = self.run("block", anchor=anchor, length=self.context.tensor(begin), **held)

        def follow(number: int, previous: Tensor) -> Shortlist:
            draft = {name: values[number] for name, values in block.items()}
            if "follow" in self.run:
                draft = self.run("follow", previous=previous, **draft)
            return best(draft, asked)

        return Started(follow(0, anchor), follow)


class RecurrentEngines(EngineSession):
    """Context rows are depth 0 themselves; what the last one gave starts the chain."""

    def __init__(self, run: Graphs, context: TorchContext, engine_version: str) -> None:
        super().__init__(run, context, engine_version)

        def of_slots(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((context.slots, width), dtype=dtype, device=context.device)

        width = candidates(self.config)
        self.last = {
            "next_carried": of_slots(self.config.hidden_size, context.dtype),
            "token": of_slots(width, torch.int64),
            "logits": of_slots(width, context.dtype),
        }

    def append(self, new: Append) -> None:
        check_rows(new)
        new, short = replace(new, features=self.context.floats(new.features)), new.count <= CHUNK
        if short.any():
            self._append(new, np.flatnonzero(short), 0, CHUNK)
        for i in np.flatnonzero(~short)[:, None]:
            for first in range(0, int(new.count[i[0]]), LONG_CHUNK):
                self._append(new, i, first, LONG_CHUNK)

    def start(self, new: Append, asked: Asked) -> Started:
        """The anchor follows each slot's last row, which was appended with it."""
        self.append(new)
        slot, begin = new.slot[asked.member], new.end[asked.member]
        slots, length = self.context.tensor(slot), self.context.tensor(begin)
        held = held_context(self.context, slot, int(begin.max()) + asked.depth)
        state = {name: values[slots] for name, values in self.last.items()}
        sequence = torch.arange(len(slot), device=slots.device)

        def follow(number: int, previous: Tensor) -> Shortlist:
            nonlocal state
            at = length + number - 1
            state = self.run("step", carried=state["next_carried"], drafted=previous, length=at, **held)
            held["keys_0"][sequence, :, at] = state["new_keys"][:, 0]
            held["values_0"][sequence, :, at] = state["new_values"][:, 0]
            return best(state, asked)

        return Started(best(state, asked), follow)

    def _append(self, new: Append, members: Array, first: int, most: int) -> None:
        """Up to `most` rows of each of these sequences, from its row `first` of the step on."""
        slot, past = new.slot[members], new.past[members] + first
        count = np.minimum(new.count[members] - first, most)
        offset = np.minimum(np.arange(count.max()), count[:, None] - 1)  # the last repeats
        row = row_starts(new.count)[members, None] + first + offset
        rows = self.run(
            "append",
            features=new.features[self.context.tensor(row)],
            following=self.context.tensor(new.following[row]),
            count=self.context.tensor(count),
            length=self.context.tensor(past),
            **held_context(self.context, slot, int(past.max())),
        )
        slots, position = self.context.tensor(slot), self.context.tensor(past[:, None] + offset)
        self.context.write(0, slots[:, None], position, KeysValues(rows["new_keys"], rows["new_values"]))
        for name, values in self.last.items():
            values[slots] = rows[name]


def best(outputs: Mapping[str, Tensor], asked: Asked) -> Shortlist:
    """Of all candidates that a pass gave, as many as are asked for."""
    return Shortlist(outputs["token"][:, : asked.candidates], outputs["logits"][:, : asked.candidates])


def held_context(context: TorchContext, slot: Array, rows: int) -> dict[str, Tensor]:
    """A dense copy of the first `rows` rows of these slots, or some more: [n, kv_heads, L, head_dim] by input name."""
    room = min(-(-max(rows, 1) // ROOM) * ROOM, context.rows)
    index = context.tensor(slot)
    stored = {"keys": context.keys, "values": context.values}
    return {
        f"{kind}_{i}": cache[:, :, :room].index_select(0, index)
        for kind, caches in stored.items()
        for i, cache in enumerate(caches)
    }
