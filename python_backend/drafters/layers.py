"""The pre-norm decoder layer that all drafter networks are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from python_backend.drafters.config import DrafterConfig

INITIAL_STD = 0.02


class KeysValues(NamedTuple):
    """What attention reads of some rows."""

    keys: Tensor  # [..., kv_heads, head_dim], rotated
    values: Tensor


# (layer, queries [..., q, heads, head_dim], keys and values of the same rows) -> [..., q, heads * head_dim]
Attention = Callable[[int, Tensor, KeysValues], Tensor]


class Norm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def linear(inputs: int, outputs: int, std: float = INITIAL_STD) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


class Rotation(nn.Module):
    """Rotary position embedding: x cos + (-x2, x1) sin with x = (x1, x2)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DrafterConfig, frequencies: Tensor) -> None:
        """frequencies: [head_dim / 2] radians per position, the target's own."""
        super().__init__()
        positions = config.max_position + config.depth + 1  # the last drafts may reach beyond the longest text
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), -1) * config.rope_scale, persistent=False)
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), -1) * config.rope_scale, persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """x: [..., heads, head_dim]; position: its leading shape."""
        cos, sin = self.cos[position].unsqueeze(-2), self.sin[position].unsqueeze(-2)
        return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


class DraftLayer(nn.Module):
    """Attention, whose keys the caller chooses, and a gated MLP; no biases."""

    def __init__(self, config: DrafterConfig, attention_inputs: int, own_context_projections: bool = False) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, head_dim
        self.query_size, self.kv_size = self.heads * head_dim, self.kv_heads * head_dim
        self.input_norm = Norm(hidden, config.norm_epsilon) if attention_inputs == hidden else None
        self.qkv = linear(attention_inputs, self.query_size + 2 * self.kv_size)
        self.context_kv: nn.Linear | None = linear(hidden, 2 * self.kv_size) if own_context_projections else None
        self.query_norm = Norm(head_dim, config.norm_epsilon) if config.qk_norm else None
        self.key_norm = Norm(head_dim, config.norm_epsilon) if config.qk_norm else None
        self.output = linear(self.query_size, hidden)
        self.mlp_norm = Norm(hidden, config.norm_epsilon)
        self.gate_up = linear(hidden, 2 * config.intermediate_size)
        self.down = linear(config.intermediate_size, hidden)

    def project(self, x: Tensor, position: Tensor, rotate: Rotation) -> tuple[Tensor, KeysValues]:
        """Queries [..., heads, head_dim] and keys and values of rows x; wider rows come normed."""
        if self.input_norm is not None:
            x = self.input_norm(x)
        query, keys_values = self.qkv(x).split((self.query_size, 2 * self.kv_size), -1)
        query = query.unflatten(-1, (self.heads, self.head_dim))
        if self.query_norm is not None:
            query = self.query_norm(query)
        return rotate(query, position), self._keys_values(keys_values, position, rotate)

    def project_context(self, context: Tensor, position: Tensor, rotate: Rotation) -> KeysValues:
        """Keys and values of rows that are only looked at."""
        if self.context_kv is not None:
            both = self.context_kv(context)
        else:
            both = F.linear(context, self.qkv.weight[self.query_size :])
        return self._keys_values(both, position, rotate)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer. attended: [..., heads * head_dim]."""
        residual = residual + self.output(attended)
        gate, up = self.gate_up(self.mlp_norm(residual)).chunk(2, -1)
        return residual + self.down(F.silu(gate) * up)

    def _keys_values(self, both: Tensor, position: Tensor, rotate: Rotation) -> KeysValues:
        keys, values = both.unflatten(-1, (2 * self.kv_heads, self.head_dim)).chunk(2, -2)
        if self.key_norm is not None:
            keys = self.key_norm(keys)
        return KeysValues(rotate(keys, position), values)
