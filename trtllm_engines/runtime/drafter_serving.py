"""How built engines append context and draft, over the slots of the `Context` that serves networks too.

An engine reads context as one dense tensor, so a draft begins with a copy of the rows that its sequences hold, as long
as the longest of them. Rows of the draft itself go into that copy alone: nothing has to be rolled back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.context import Context
from python_backend.drafters.drafting import Drafted, GoOn, always
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.pick import Pick
from python_backend.drafters.serving import Append
from python_backend.protocol import Array, ProtocolError, row_starts
from trtllm_engines.pin import CHUNK, LONG_CHUNK
from trtllm_engines.runtime.graph_session import GraphSession

ROOM = 64  # rows that the copied context grows by: the fewer shapes there are, the less often an engine is told


class Serving(Protocol):
    """What a drafter does with its context."""

    def append(self, new: Append) -> None: ...

    def draft(self, slot: Array, anchor: Tensor, depth: int, pick: Pick, go_on: GoOn = always) -> Drafted:
        """anchor: [b] tokens, each right after its slot's context."""
        ...


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


class BlockEngines:
    """Context rows become keys and values at once; a block looks at them and at itself."""

    def __init__(self, run: Graphs, config: DrafterConfig, context: Context, rows: int) -> None:
        """rows: most context rows of one pass."""
        self.run, self.config, self.context, self.rows = run, config, context, rows

    def append(self, new: Append) -> None:
        starts = row_starts(new.count)
        position = self.context.tensor(np.arange(starts[-1]) + np.repeat(new.past - starts[:-1], new.count))
        slot = self.context.tensor(np.repeat(new.slot, new.count))
        for first in range(0, int(starts[-1]), self.rows):
            piece = slice(first, first + self.rows)
            rows = self.run("context", features=new.features[piece], position=position[piece])
            for i in range(self.config.layers):
                keys_values = KeysValues(rows[f"keys_{i}"], rows[f"values_{i}"])
                self.context.write(i, slot[piece], position[piece], keys_values)

    def draft(self, slot: Array, anchor: Tensor, depth: int, pick: Pick, go_on: GoOn = always) -> Drafted:
        """The engine drafts a whole block, as it was trained; of that the first `depth` are taken."""
        begin = self.context.stored[slot]
        held = held_context(self.context, slot, int(begin.max()))
        block = self.run("block", anchor=anchor, length=self.context.tensor(begin), **held)
        previous, chosen = anchor, Chosen()
        for k in range(depth):
            draft = {name: values[k] for name, values in block.items()}
            if "follow" in self.run:
                draft = self.run("follow", previous=previous, **draft)
            previous = chosen.take(draft["token"], draft["logits"], pick)
        return chosen.drafted()


class RecurrentEngines:
    """Context rows are depth 0 themselves; what the last one gave starts the chain."""

    def __init__(self, run: Graphs, config: DrafterConfig, context: Context, candidates: int) -> None:
        """candidates: of a draft, S."""
        self.run, self.context = run, context

        def of_slots(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((context.slots, width), dtype=dtype, device=context.device)

        self.last = {
            "next_carried": of_slots(config.hidden_size, context.dtype),
            "token": of_slots(candidates, torch.int64),
            "logits": of_slots(candidates, context.dtype),
        }

    def append(self, new: Append) -> None:
        """Raises ProtocolError for a sequence without new rows: its chain would have no state to start from."""
        for i in np.flatnonzero(new.count < 1):
            raise ProtocolError(f"tensor 'context_count' is {new.count[i]} for slot {new.slot[i]}, minimum 1")
        short = new.count <= CHUNK
        if short.any():
            self._append(new, np.flatnonzero(short), 0, CHUNK)
        for i in np.flatnonzero(~short)[:, None]:
            for first in range(0, int(new.count[i[0]]), LONG_CHUNK):
                self._append(new, i, first, LONG_CHUNK)

    def draft(self, slot: Array, anchor: Tensor, depth: int, pick: Pick, go_on: GoOn = always) -> Drafted:
        """The anchor follows each slot's last row, which was appended with it. Asking whether to go on would wait for
        the device."""
        begin, slots = self.context.stored[slot], self.context.tensor(slot)
        held = held_context(self.context, slot, int(begin.max()) + depth)
        state = {name: values[slots] for name, values in self.last.items()}
        sequence, length = torch.arange(len(slot), device=anchor.device), self.context.tensor(begin)
        chosen = Chosen()
        for k in range(depth):
            drafted = chosen.take(state["token"], state["logits"], pick)
            if k + 1 < depth:
                state = self.run("step", carried=state["next_carried"], drafted=drafted, length=length, **held)
                held["keys_0"][sequence, :, length] = state["new_keys"][:, 0]
                held["values_0"][sequence, :, length] = state["new_values"][:, 0]
                length = length + 1
        return chosen.drafted()

    def _append(self, new: Append, members: Array, first: int, most: int) -> None:
        """Up to `most` rows of each of these sequences, from its row `first` of the step on."""
        slot, past = new.slot[members], new.past[members] + first
        count = np.minimum(new.count[members] - first, most)
        offset = np.minimum(np.arange(count.max()), count[:, None] - 1)  # the last repeats
        row = self.context.tensor(row_starts(new.count)[members, None] + first + offset)
        rows = self.run(
            "append",
            features=new.features[row],
            following=new.following[row],
            count=self.context.tensor(count),
            length=self.context.tensor(past),
            **held_context(self.context, slot, int(past.max())),
        )
        slots, position = self.context.tensor(slot), self.context.tensor(past[:, None] + offset)
        self.context.write(0, slots[:, None], position, KeysValues(rows["new_keys"], rows["new_values"]))
        for name, values in self.last.items():
            values[slots] = rows[name]


class Chosen:
    """The drafts of a chain, as they are picked."""

    def __init__(self) -> None:
        self._columns: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._scores: list[Tensor] = []

    def take(self, tokens: Tensor, logits: Tensor, pick: Pick) -> Tensor:
        """[n] tokens of the next draft: the winners among candidates [n, S], best first."""
        tokens, logits = tokens[:, : pick.candidates], logits[:, : pick.candidates]
        scores = pick.scores(tokens, logits, len(self._columns))
        column = scores.argmax(-1, keepdim=True)
        chosen = tokens.gather(-1, column)
        self._columns.append(column)
        self._tokens.append(chosen)
        self._scores.append(scores)
        return chosen.squeeze(-1)

    def drafted(self) -> Drafted:
        """All of them; how sure each was is worked out for all drafts at once."""
        probability = torch.stack(self._scores, 1).softmax(-1).gather(-1, torch.stack(self._columns, 1))
        return Drafted(torch.cat(self._tokens, 1), probability.squeeze(-1))


def held_context(context: Context, slot: Array, rows: int) -> dict[str, Tensor]:
    """A dense copy of the first `rows` rows of these slots, or some more: [n, kv_heads, L, head_dim] by input name."""
    room = min(-(-max(rows, 1) // ROOM) * ROOM, context.keys[0].shape[2])
    index = context.tensor(slot)
    stored = {"keys": context.keys, "values": context.values}
    return {
        f"{kind}_{i}": cache[:, :, :room].index_select(0, index)
        for kind, caches in stored.items()
        for i, cache in enumerate(caches)
    }
