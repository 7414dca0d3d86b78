"""What all drafter networks share: the target's frozen embedding and head, and the table of tokens they can draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.layers import Norm, Rotation


@dataclass(frozen=True, eq=False)
class TargetParts:
    """What a drafter borrows from its target and never trains."""

    embedding: Tensor  # [vocabulary, hidden]
    head: Tensor  # [vocabulary, hidden]
    final_norm: Tensor  # [hidden]
    rope_frequencies: Tensor  # [head_dim / 2]


class DraftNetwork(nn.Module):
    """Base of the drafter networks. Tensors borrowed from the target are not part of the state."""

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor
    feature_scale: Tensor

    def __init__(self, config: DrafterConfig, target: TargetParts, draft_ids: Tensor, feature_scale: Tensor) -> None:
        """draft_ids: [Vd] the token of each draft index, ascending. feature_scale: [T] one factor a captured layer."""
        super().__init__()
        self.config = config
        self.rotate = Rotation(config, target.rope_frequencies)
        self.final_norm = Norm(config.hidden_size, config.norm_epsilon)
        self.register_buffer("draft_ids", draft_ids)
        self.register_buffer("feature_scale", feature_scale)
        self.register_buffer("embedding", target.embedding, persistent=False)
        self.register_buffer("head", target.head[draft_ids].contiguous(), persistent=False)
        self.head_product: Callable[[Tensor], Tensor] = lambda hidden: F.linear(hidden, self.head)

    def scaled(self, features: Tensor) -> Tensor:
        """[..., T, hidden] captured layers of about unit size from features [..., T * hidden]."""
        layers = features.unflatten(-1, (len(self.config.feature_layers), self.config.hidden_size))
        return layers * self.feature_scale[:, None]

    def base_logits(self, hidden: Tensor) -> Tensor:
        """[..., Vd] by the target's own head."""
        return self.head_product(hidden)

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:  # noqa: ARG002 (part of an interface)
        """[..., Vd] of finished hidden states. previous: the token before each draft; not every head looks at it."""
        return self.base_logits(hidden)

    def to_index(self, tokens: Tensor) -> Tensor:
        """Draft index of each token; -1 where it cannot be drafted."""
        index = torch.searchsorted(self.draft_ids, tokens).clamp_max(len(self.draft_ids) - 1)
        return torch.where(self.draft_ids[index] == tokens, index, -1)
