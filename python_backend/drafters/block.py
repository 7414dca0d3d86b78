"""Block drafters: one pass over D masked slots drafts them all; a small head then walks through them.

DFly (arXiv:2607.25852) conditions each layer on a basis shared by all layers plus a mix of its own, and corrects each
slot's hidden state by the draft before it. DFlash has the basis alone, DFlare the mix alone with context projections of
its own, DSpark the basis with a Markov head that adds a low-rank term to the logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.layers import Attention, DraftLayer, KeysValues, Norm, linear
from python_backend.drafters.network import DraftNetwork, TargetParts


class BlockDrafter(DraftNetwork):
    """A block of slots: the anchor's token, then masks. Slots see the context before the anchor and each other."""

    def __init__(self, config: DrafterConfig, target: TargetParts, draft_ids: Tensor, feature_scale: Tensor) -> None:
        super().__init__(config, target, draft_ids, feature_scale)
        parts = self.parts = config.block_parts
        hidden, captured = config.hidden_size, len(config.feature_layers)
        self.mask = nn.Parameter(target.embedding.mean(0))
        self.context_norm = Norm(hidden, config.norm_epsilon)
        self.basis = linear(captured * hidden, hidden) if parts.shared_basis else None
        self.mix = nn.Parameter(torch.zeros(config.layers, captured)) if parts.layer_mix else None
        layers = [DraftLayer(config, hidden, parts.own_context_projections) for _ in range(config.layers)]
        self.layers: Sequence[DraftLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.correction = Correction(config) if parts.head == "correction" else None
        self.markov = Markov(config) if parts.head == "markov" else None

    def context(self, features: Tensor, position: Tensor) -> list[KeysValues]:
        """Keys and values of every layer for context rows. features: [..., F]; position: [...]."""
        captured = self.scaled(features)
        shared = self.basis(captured.flatten(-2)) if self.basis is not None else None
        contexts = []
        for i, layer in enumerate(self.layers):
            own = torch.einsum("t,...th->...h", self.mix[i].softmax(-1), captured) if self.mix is not None else None
            rows = own if shared is None else shared if own is None else shared + own
            contexts.append(layer.project_context(self.context_norm(rows), position, self.rotate))
        return contexts

    def slots(self, depth: int) -> int:
        """Rows of a block."""
        return depth if self.parts.anchor_first else depth + 1

    def block(self, anchor: Tensor, position: Tensor, depth: int, attention: Attention) -> Tensor:
        """[..., depth, hidden] what the slots know before they see each other's tokens.

        anchor, position: [...] token and place of each block's anchor. attention: each block's slots see its context
        and each other.
        """
        slots = self.slots(depth)
        masks = self.mask.expand(*anchor.shape, slots - 1, -1)
        x = torch.cat((self.embedding[anchor].unsqueeze(-2), masks), -2)
        positions = position.unsqueeze(-1) + torch.arange(slots, device=position.device)
        for i, layer in enumerate(self.layers):
            query, own = layer.project(x, positions, self.rotate)
            x = layer.finish(x, attention(i, query, own))
        x = self.final_norm(x)
        return x if self.parts.anchor_first else x[..., 1:, :]

    def correct(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Hidden states of slots whose previous token is known. previous: the leading shape of hidden."""
        return hidden if self.correction is None else self.correction(hidden, self.embedding[previous])

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        return self.after(self.base_logits(hidden), previous)

    def after(self, logits: Tensor, previous: Tensor) -> Tensor:
        """[..., Vd] with the Markov term of the token before, where there is one."""
        return logits if self.markov is None else logits + self.markov(self.to_index(previous))


class Correction(nn.Module):
    """h + W_down(silu(W_gate z) * W_up z) with z = (norm(h), norm(e)), e the embedding of the draft before."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.hidden_norm = Norm(hidden, config.norm_epsilon)
        self.token_norm = Norm(hidden, config.norm_epsilon)
        self.gate_up = linear(2 * hidden, 2 * hidden)
        self.down = linear(hidden, hidden)
        nn.init.zeros_(self.down.weight)  # starts as if it were not there

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        both = torch.cat((self.hidden_norm(hidden), self.token_norm(previous)), -1)
        gate, up = self.gate_up(both).chunk(2, -1)
        return hidden + self.down(F.silu(gate) * up)


class Markov(nn.Module):
    """A term of the logits that depends on the previous draft alone, of low rank."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.rows = nn.Embedding(config.draft_vocabulary_size + 1, config.markov_rank)  # the last: any other token
        self.columns = linear(config.markov_rank, config.draft_vocabulary_size)
        nn.init.zeros_(self.columns.weight)

    def forward(self, previous: Tensor) -> Tensor:
        """previous: [...] draft indices, -1 for tokens that cannot be drafted. Returns [..., Vd]."""
        return self.columns(self.rows(torch.where(previous < 0, len(self.rows.weight) - 1, previous)))
