"""A drafter's steps made of its graphs, run by torch or by onnxruntime, over the memory that serving uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnxruntime import InferenceSession
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.graphs import graphs
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.recurrent import RecurrentDrafter
from python_backend.drafters.torch_context import TorchContext
from python_backend.protocol import row_starts

TOLERANCE = 1e-4
DIRT = 7.0  # what a graph finds in memory that it must not look at


class Graphs:
    """Runs a drafter's graphs by name. With sessions, onnxruntime runs them and torch has the last word."""

    def __init__(
        self, network: BlockDrafter | RecurrentDrafter, sessions: dict[str, InferenceSession] | None = None
    ) -> None:
        self.graphs = {graph.name: graph for graph in graphs(network)}
        self.sessions = sessions or {}
        self.lent = {"embedding": network.embedding, "head": network.head}
        self.worst = 0.0  # largest difference seen

    def __call__(self, name: str, **inputs: Tensor) -> dict[str, Tensor]:
        graph = self.graphs[name]
        names, outputs = ([port.name for port in ports] for ports in graph.contract[1:])
        given = inputs | self.lent
        ordered = [given[name] for name in names]
        with torch.inference_mode():
            result = graph.module(*ordered)
        expected = dict(zip(outputs, result if isinstance(result, tuple) else (result,), strict=True))
        if name not in self.sessions:
            return expected
        fed = {name: tensor.numpy() for name, tensor in zip(names, ordered, strict=True)}
        answer = zip(outputs, self.sessions[name].run(outputs, fed), strict=True)
        found = {output: torch.from_numpy(np.asarray(values)) for output, values in answer}
        wanted = by_token(expected)
        for output, tensor in by_token(found).items():
            assert tensor.shape == wanted[output].shape, f"{name}.{output}"
            self.worst = max(self.worst, (tensor - wanted[output]).abs().max().item())
            torch.testing.assert_close(tensor, wanted[output], atol=TOLERANCE, rtol=0, msg=lambda m: f"{name}: {m}")
        return found


def by_token(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Candidates in the order of their tokens: two that are nearly alike may come in either order."""
    if "token" not in outputs:
        return outputs
    order = outputs["token"].argsort(-1)
    return outputs | {name: outputs[name].gather(-1, order) for name in ("token", "logits")}


def dirty(context: TorchContext) -> None:
    """Fill the memory with what no graph may see."""
    for tensor in (*context.keys, *context.values):
        tensor.fill_(DIRT)


def cache_of(context: TorchContext, sequences: int) -> dict[str, Tensor]:
    """What the graphs call the context of the first slots."""
    layers = range(len(context.keys))
    caches = {"keys": context.keys, "values": context.values}
    return {f"{kind}_{i}": caches[kind][i][:sequences] for i in layers for kind in caches}


class BlockSteps:
    def __init__(self, run: Graphs, network: BlockDrafter, context: TorchContext) -> None:
        self.run, self.network, self.context = run, network, context
        self.stored = np.zeros(context.slots, dtype=np.int32)

    def append(self, count: Any, features: Tensor, following: Tensor) -> None:
        """Packed rows of all sequences."""
        slot = torch.arange(len(count)).repeat_interleave(torch.from_numpy(count))
        within = torch.cat([torch.arange(int(n)) for n in count])
        position = torch.from_numpy(self.stored[: len(count)]).long()[slot] + within
        rows = self.run("context", features=features, position=position)
        for layer in range(len(self.context.keys)):
            self.context.write(layer, slot, position, KeysValues(rows[f"keys_{layer}"], rows[f"values_{layer}"]))
        self.stored[: len(count)] += count

    def draft(self, anchor: Tensor) -> Tensor:
        """[n, D] tokens, the first choice of each slot."""
        length = torch.from_numpy(self.stored[: len(anchor)]).long()
        block = self.run("block", anchor=anchor, length=length, **cache_of(self.context, len(anchor)))
        previous, drafts = anchor, []
        for k in range(self.network.config.depth):
            draft = {name: values[k] for name, values in block.items()}
            if "follow" in self.run.graphs:
                draft = self.run("follow", previous=previous, **draft)
            previous = draft["token"].gather(1, draft["logits"].argmax(-1, keepdim=True)).squeeze(1)
            drafts.append(previous)
        return torch.stack(drafts, 1)


class RecurrentSteps:
    def __init__(self, run: Graphs, network: RecurrentDrafter, context: TorchContext) -> None:
        self.run, self.network, self.context = run, network, context
        self.stored = np.zeros(context.slots, dtype=np.int32)
        self.last: dict[str, Tensor] = {}

    def append(self, count: Any, features: Tensor, following: Tensor) -> None:
        n, q, starts = len(count), int(count.max()), row_starts(count)
        padded = torch.full((n, q, features.shape[1]), DIRT)
        tokens = torch.zeros(n, q, dtype=torch.int64)
        for i in range(n):
            padded[i, : count[i]] = features[starts[i] : starts[i + 1]]
            tokens[i, : count[i]] = following[starts[i] : starts[i + 1]]
        counts = torch.from_numpy(count).long()
        rows = {"features": padded, "following": tokens, "count": counts}
        self.last = self.run("append", **rows, length=self._length(n), **cache_of(self.context, n))
        for i in range(n):
            self._write(i, self.last["new_keys"][i, : count[i]], self.last["new_values"][i, : count[i]])
        self.stored[:n] += count

    def draft(self, anchor: Tensor) -> Tensor:
        state, drafts, begin = self.last, [], self.stored.copy()
        for k in range(self.network.config.depth):
            best = state["logits"].argmax(-1, keepdim=True)
            drafts.append(state["token"].gather(1, best).squeeze(1))
            if k + 1 < self.network.config.depth:
                n = len(anchor)
                own = {"carried": state["next_carried"], "drafted": drafts[-1], "length": self._length(n)}
                state = self.run("step", **own, **cache_of(self.context, n))
                for i in range(n):
                    self._write(i, state["new_keys"][i], state["new_values"][i])
                self.stored[:n] += 1
        self.stored[:] = begin
        return torch.stack(drafts, 1)

    def _length(self, n: int) -> Tensor:
        return torch.from_numpy(self.stored[:n]).long()

    def _write(self, slot: int, keys: Tensor, values: Tensor) -> None:
        position = int(self.stored[slot]) + torch.arange(len(keys))
        self.context.write(0, torch.full_like(position, slot), position, KeysValues(keys, values))
