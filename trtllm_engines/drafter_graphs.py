"""The graphs that a drafter's step is made of, as torch modules with fixed inputs and outputs.

The networks are those of training (`python_backend.drafters`); here they get the context as tensors instead of a cache
of their own, so that a runtime keeps it in device memory and binds it in place. n sequences, each with `length` rows of
context of which the graph is handed L, the rest being whatever the memory holds:

    block drafters      context   features of committed rows -> their keys and values, a layer each
                        block     anchor and context -> hidden states of D drafts, and their likeliest candidates
                        rescore   one draft's candidates, once the draft before it is known (DFly's correction)
    recurrent drafters  append    committed rows with the token after each -> keys and values, state, candidates
                        step      the state joined with a drafted token -> the same, one row a sequence

Embedding and head are inputs, so that all engines on a GPU share one copy. What picks a draft among the candidates is
left to the caller: it knows the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.drafting import shortlist
from python_backend.drafters.layers import Attention, KeysValues
from python_backend.drafters.recurrent import RecurrentDrafter, State

Dimension = int | str  # a fixed size, or the name of a dynamic one, as trtllm_engines.build_drafter knows it


class GraphError(ValueError):
    """The drafter has a part that cannot be exported."""


class Input(NamedTuple):
    name: str
    shape: tuple[Dimension, ...]
    integer: bool = False


class Graph(NamedTuple):
    """A module and the contract of its tensors."""

    name: str
    module: nn.Module
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]


def graphs(network: BlockDrafter | RecurrentDrafter) -> list[Graph]:
    """All graphs of a drafter. Raises GraphError where it has a Markov head, whose look-up ONNX has no operator for."""
    config = network.config
    parts = (
        Input("embedding", (config.vocabulary_size, config.hidden_size)),
        Input("head", (config.draft_vocabulary_size, config.hidden_size)),
    )
    if isinstance(network, RecurrentDrafter):
        return [_append(network, parts), _step(network, parts)]
    if network.markov is not None:
        raise GraphError(f"a {config.kind} drafter cannot be exported: its Markov head searches the draft vocabulary")
    found = [_context(network), _block(network, parts)]
    return found if network.correction is None else [*found, _rescore(network, parts)]


def _context(network: BlockDrafter) -> Graph:
    inputs = (Input("features", ("rows", network.config.feature_size)), Input("position", ("rows",), True))
    return Graph("context", ContextRows(network), inputs, _cache_names(network.config.layers))


def _block(network: BlockDrafter, parts: tuple[Input, ...]) -> Graph:
    inputs = (
        Input("anchor", ("sequences",), True),
        Input("length", ("sequences",), True),
        *_cache_inputs(network, network.config.layers),
        *parts,
    )
    return Graph("block", Lent(Block(network)), inputs, ("hidden", "token", "candidate", "base"))


def _rescore(network: BlockDrafter, parts: tuple[Input, ...]) -> Graph:
    size = shortlist(torch.empty(1, network.config.draft_vocabulary_size)).candidate.shape[1]
    inputs = (
        Input("hidden", ("sequences", network.config.hidden_size)),
        Input("previous", ("sequences",), True),
        Input("candidate", ("sequences", size), True),
        Input("base", ("sequences", size)),
        *parts,
    )
    return Graph("rescore", Lent(Rescore(network)), inputs, ("logits",))


RECURRENT_OUTPUTS = ("output", "next_carried", "token", "candidate", "logits", "new_keys", "new_values")


def _append(network: RecurrentDrafter, parts: tuple[Input, ...]) -> Graph:
    inputs = (
        Input("features", ("sequences", "chunk", network.config.feature_size)),
        Input("following", ("sequences", "chunk"), True),
        Input("count", ("sequences",), True),
        Input("length", ("sequences",), True),
        *_cache_inputs(network, 1),
        *parts,
    )
    return Graph("append", Lent(Append(network)), inputs, RECURRENT_OUTPUTS)


def _step(network: RecurrentDrafter, parts: tuple[Input, ...]) -> Graph:
    inputs = (
        Input("carried", ("sequences", network.config.hidden_size)),
        Input("drafted", ("sequences",), True),
        Input("length", ("sequences",), True),
        *_cache_inputs(network, 1),
        *parts,
    )
    return Graph("step", Lent(Step(network)), inputs, RECURRENT_OUTPUTS)


def _cache_names(layers: int) -> tuple[str, ...]:
    return tuple(f"{kind}_{layer}" for layer in range(layers) for kind in ("keys", "values"))


def _cache_inputs(network: BlockDrafter | RecurrentDrafter, layers: int) -> tuple[Input, ...]:
    config = network.config
    shape = ("sequences", config.kv_heads, "context", config.head_dim)
    return tuple(Input(name, shape) for name in _cache_names(layers))


class Lent(nn.Module):
    """A graph whose network gets embedding and head as its last two inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        *own, embedding, head = inputs
        lent = {"network.embedding": embedding, "network.head": head}
        return functional_call(self.inner, lent, tuple(own))


class ContextRows(nn.Module):
    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """[rows, kv_heads, head_dim] keys, values of each layer. features: [rows, F]; position: [rows]."""
        return tuple(tensor for layer in self.network.context(features, position) for tensor in layer)


class Block(nn.Module):
    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(self, anchor: Tensor, length: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        """anchor: [n] tokens, each right after its context. Returns hidden [n, D, hidden], tokens, draft indices and
        logits of the candidates [n, D, S]."""
        network, depth = self.network, self.network.config.depth
        slots = network.slots(depth)
        every = torch.ones(1, slots, slots, dtype=torch.bool, device=anchor.device)
        hidden = network.block(anchor, length, depth, over(cache, length, every))
        best = shortlist(network.base_logits(hidden.flatten(0, 1)))
        candidate, base = (tensor.unflatten(0, (-1, depth)) for tensor in best)
        return hidden, network.draft_ids[candidate], candidate, base


class Rescore(nn.Module):
    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(self, hidden: Tensor, previous: Tensor, candidate: Tensor, base: Tensor) -> Tensor:
        """[n, S] logits of one draft's candidates. previous: [n] the token before it."""
        return self.network.rescore(hidden, previous, candidate, base)


class Append(nn.Module):
    def __init__(self, network: RecurrentDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, features: Tensor, following: Tensor, count: Tensor, length: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        """New rows of each sequence, padded: [n, q]; the first count of them hold. Returns the last one's state and
        candidates, then keys and values [n, q, kv_heads, head_dim] of all."""
        row = torch.arange(features.shape[1], device=features.device)
        position = length[:, None] + torch.minimum(row, count[:, None] - 1)
        visible = (row <= row[:, None]) & (row < count[:, None, None])
        kept = Kept(over((keys, values), length, visible))
        state = self.network.run(self.network.start(features), following, position, kept)
        last = (count - 1)[:, None, None].expand(-1, 1, self.network.config.hidden_size)
        return finish(self.network, State(*(tensor.gather(1, last).squeeze(1) for tensor in state)), kept.rows)


class Step(nn.Module):
    def __init__(self, network: RecurrentDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, carried: Tensor, drafted: Tensor, length: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        """One row of each sequence. carried: [n, hidden] of the row before; drafted: [n] tokens."""
        itself = torch.ones(1, 1, 1, dtype=torch.bool, device=carried.device)
        kept = Kept(over((keys, values), length, itself))
        state = self.network.run(carried[:, None], drafted[:, None], length[:, None], kept)
        return finish(self.network, State(state.output[:, 0], state.carried[:, 0]), kept.rows)


class Kept:
    """An attention that remembers the keys and values of its own rows."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.rows: KeysValues

    def __call__(self, layer: int, query: Tensor, own: KeysValues) -> Tensor:
        self.rows = own
        return self.attention(layer, query, own)


def finish(network: RecurrentDrafter, state: State, rows: KeysValues) -> tuple[Tensor, ...]:
    best = shortlist(network.base_logits(state.output))
    return *state, network.draft_ids[best.candidate], *best, *rows


def over(cache: Sequence[Tensor], length: Tensor, visible: Tensor) -> Attention:
    """Attention over a context and the rows themselves, without joining the two, which would copy the context.

    cache: keys, values [n, kv_heads, L, head_dim] of each layer, of which sequence i has length[i]. visible: [n or 1,
    q, q], own rows that each row sees.
    """
    held = torch.arange(cache[0].shape[2], device=length.device) < length[:, None]

    def attention(layer: int, query: Tensor, own: KeysValues) -> Tensor:
        keys, values = cache[2 * layer], cache[2 * layer + 1]
        n, q, heads, head_dim = query.shape
        kv_heads = keys.shape[1]
        grouped = query.view(n, q, kv_heads, heads // kv_heads, head_dim).permute(0, 2, 3, 1, 4) * head_dim**-0.5
        own_keys, own_values = (tensor.transpose(1, 2).unsqueeze(2) for tensor in own)
        before = grouped @ keys.unsqueeze(2).transpose(-1, -2)
        among = grouped @ own_keys.transpose(-1, -2)
        before = before.masked_fill(~held[:, None, None, None], float("-inf"))
        among = among.masked_fill(~visible[:, None, None], float("-inf"))
        weights = torch.cat((before, among), -1).float().softmax(-1).to(query.dtype)
        seen, itself = weights.split((before.shape[-1], among.shape[-1]), -1)
        answer = seen @ values.unsqueeze(2) + itself @ own_values
        return answer.permute(0, 3, 1, 2, 4).reshape(n, q, heads * head_dim)

    return attention
