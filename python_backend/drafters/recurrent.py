"""Recurrent drafters: one layer, run once a draft, fed with its own output and the token it drafted.

MTP reads the target's final hidden state and projects it together with the token's embedding. EAGLE-3 reads several
captured layers and lets attention see both halves.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.layers import Attention, DraftLayer, Norm, linear
from python_backend.drafters.network import DraftNetwork, TargetParts


class State(NamedTuple):
    """What a step hands to the next."""

    output: Tensor  # [..., hidden] normed, for the head
    carried: Tensor  # [..., hidden] what the next depth reads


class RecurrentDrafter(DraftNetwork):
    """Row j joins the state at position j with the token that follows it, and predicts the token after that.

    At depth 0 rows attend to all rows before them; a row of depth d attends to the depth-0 rows up to its chain's
    first and to the chain's own later rows, as a cache would hold them when it is served.
    """

    def __init__(self, config: DrafterConfig, target: TargetParts, draft_ids: Tensor, feature_scale: Tensor) -> None:
        super().__init__(config, target, draft_ids, feature_scale)
        hidden = config.hidden_size
        self.token_norm = Norm(hidden, config.norm_epsilon)
        self.hidden_norm = Norm(hidden, config.norm_epsilon)
        joins = config.kind == "mtp"
        self.join = linear(2 * hidden, hidden, std=0.03) if joins else None
        self.fuse = None if joins else linear(config.feature_size, hidden)
        self.layer = DraftLayer(config, hidden if joins else 2 * hidden)

    def start(self, features: Tensor) -> Tensor:
        """[..., hidden] what depth 0 reads of the captured features [..., F]."""
        captured = self.scaled(features).flatten(-2)
        return captured if self.fuse is None else self.fuse(captured)

    def run(self, carried: Tensor, token: Tensor, position: Tensor, attention: Attention) -> State:
        """One depth of rows [..., q]: the state at each position joined with the token that follows it."""
        both = torch.cat((self.token_norm(self.embedding[token]), self.hidden_norm(carried)), -1)
        residual = carried if self.join is None else self.join(both)
        query, own = self.layer.project(both if self.join is None else residual, position, self.rotate)
        raw = self.layer.finish(residual, attention(0, query, own))
        output = self.final_norm(raw)
        return State(output, raw if self.join is None else output)
