"""Recurrent drafters: one layer, run once a draft, fed with its own output and the token it drafted.

MTP reads the target's final hidden state and projects it together with the token's embedding. EAGLE-3 reads several
captured layers and lets attention see both halves.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.layers import DraftLayer, KeysValues, Norm, attend, linear
from python_backend.drafters.network import DraftNetwork, TargetParts


class State(NamedTuple):
    """What a step hands to the next."""

    output: Tensor  # [..., hidden] normed, for the head
    carried: Tensor  # [..., hidden] what the next depth reads
    keys_values: KeysValues  # of the rows just run


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
        self.joins = config.kind == "mtp"
        self.join = linear(2 * hidden, hidden, std=0.03) if self.joins else None
        self.fuse = None if self.joins else linear(config.feature_size, hidden)
        self.layer = DraftLayer(config, hidden if self.joins else 2 * hidden)

    def start(self, features: Tensor) -> Tensor:
        """[..., hidden] what depth 0 reads of the captured features [..., F]."""
        captured = self.scaled(features).flatten(-2)
        return captured if self.fuse is None else self.fuse(captured)

    def prepare(self, carried: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """(residual, what attention reads) of rows."""
        both = torch.cat((self.token_norm(self.embedding[token]), self.hidden_norm(carried)), -1)
        if self.join is None:
            return carried, both
        joined = self.join(both)
        return joined, joined

    def finish(self, residual: Tensor, attended: Tensor, keys_values: KeysValues) -> State:
        raw = self.layer.finish(residual, attended)
        output = self.final_norm(raw)
        return State(output, output if self.joins else raw, keys_values)

    def first(self, features: Tensor, following: Tensor, position: Tensor) -> State:
        """Depth 0 of whole sequences. features: [n, S, F]; following: [n, S] tokens; position: [n, S]."""
        residual, x = self.prepare(self.start(features), following)
        query, own = self.layer.project(x, position, self.rotate)
        rows = torch.arange(following.shape[1], device=following.device)
        causal = (rows <= rows[:, None]).expand(len(following), -1, -1)
        return self.finish(residual, attend(query.unsqueeze(2), own, causal, None).squeeze(2), own)

    def next(
        self, state: State, token: Tensor, position: Tensor, first: KeysValues, visible: Tensor, chain: list[KeysValues]
    ) -> State:
        """One depth further for chains. token, position: [n, R]. first: depth-0 rows [n, S, …]. visible: [n, R, S].
        chain: the chains' rows of earlier depths beyond 0, [n, R, …] each; the new one is added."""
        residual, x = self.prepare(state.carried, token)
        query, own = self.layer.project(x, position, self.rotate)
        chain.append(own)
        stacked = KeysValues(*(torch.stack(parts, 2) for parts in zip(*chain, strict=True)))
        return self.finish(residual, attend(query.unsqueeze(2), first, visible, stacked).squeeze(2), own)
