"""A drafter's graphs as torch modules: the networks of training, with the context as tensors instead of a cache.

So that a runtime keeps it in device memory. `contract` says what goes in and comes out of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.contract import GraphContract, contracts, lent_inputs
from python_backend.drafters.drafting import shortlist
from python_backend.drafters.layers import Attention, KeysValues
from python_backend.drafters.pick import RACING
from python_backend.drafters.recurrent import RecurrentDrafter, State

Network = BlockDrafter | RecurrentDrafter


class Graph(NamedTuple):
    """A module that takes a contract's inputs in order and gives its outputs in order."""

    contract: GraphContract
    module: nn.Module

    @property
    def name(self) -> str:
        return self.contract.name


def graphs(network: Network) -> list[Graph]:
    """All graphs of a drafter, in the order in which a step runs them."""
    return [Graph(contract, _module(contract, network)) for contract in contracts(network.config)]


def _module(contract: GraphContract, network: Network) -> nn.Module:
    module, lent = MODULES[contract.name](network), lent_inputs(contract)
    return Lent(module, lent) if lent else module


class Lent(nn.Module):
    """A graph whose network gets tensors of the target as its last inputs."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.names = inner, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        own, lent = inputs[: -len(self.names)], inputs[-len(self.names) :]
        named = {f"network.{name}": tensor for name, tensor in zip(self.names, lent, strict=True)}
        return functional_call(self.inner, named, own)


class ContextRows(nn.Module):
    """A block drafter's context rows from the target's features: the keys and values of each layer."""

    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """[rows, kv_heads, head_dim] keys, values of each layer. features: [rows, F]; position: [rows]."""
        return tuple(tensor for layer in self.network.context(features, position) for tensor in layer)


class Block(nn.Module):
    """A block's hidden states over its context, before any token of it is corrected."""

    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(self, anchor: Tensor, length: Tensor, *cache: Tensor) -> Tensor | tuple[Tensor, ...]:
        """anchor: [n] tokens, each right after its context. Returns hidden states [D, n, hidden] to correct, logits
        [D, n, Vd] that lack their Markov term, or tokens and logits of the candidates [D, n, S]."""
        network, depth = self.network, self.network.config.depth
        slots = network.slots(depth)
        every = torch.ones(1, slots, slots, dtype=torch.bool, device=anchor.device)
        hidden = network.block(anchor, length, depth, over(cache, length, every)).transpose(0, 1)
        if network.correction is not None:
            return hidden
        logits = network.base_logits(hidden)
        return logits if network.markov is not None else shortlist(network.draft_ids, logits, RACING)


class Correct(nn.Module):
    """One draft's candidates, once the draft before it can correct its hidden state."""

    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        self.network = network

    def forward(self, hidden: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Tokens and logits [n, S]. hidden: [n, hidden] of the slot; previous: [n] the token before it."""
        logits = self.network.base_logits(self.network.correct(hidden, previous))
        return shortlist(self.network.draft_ids, logits, RACING)


class Chain(nn.Module):
    """One draft's candidates with the Markov head's term. ONNX has no search in a sorted table: a larger table says the
    draft index of every token."""

    index: Tensor
    draft_ids: Tensor

    def __init__(self, network: BlockDrafter) -> None:
        super().__init__()
        assert network.markov is not None
        self.markov = network.markov
        self.register_buffer("draft_ids", network.draft_ids, persistent=False)
        self.register_buffer("index", network.to_index(torch.arange(network.config.vocabulary_size)), persistent=False)

    def forward(self, base: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Tokens and logits [n, S]. base: [n, Vd]; previous: [n] the token before."""
        return shortlist(self.draft_ids, base + self.markov(self.index[previous]), RACING)


def following(network: BlockDrafter) -> nn.Module:
    return Chain(network) if network.markov is not None else Correct(network)


class Append(nn.Module):
    """A recurrent drafter's context rows, and the state of the first draft."""

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
    """One further draft of a chain, from the state and the token of the one before."""

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
    return state.carried, *shortlist(network.draft_ids, network.base_logits(state.output), RACING), *rows


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


MODULES: dict[str, Callable[..., nn.Module]] = {
    "context": ContextRows,
    "block": Block,
    "follow": following,
    "append": Append,
    "step": Step,
}
