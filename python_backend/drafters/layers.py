"""The pre-norm decoder layer that all drafter networks are made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from python_backend.drafters.config import DrafterConfig

INITIAL_STD = 0.02


class KeysValues(NamedTuple):
    keys: Tensor  # [..., kv_heads, head_dim], rotated
    values: Tensor


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
        angles = torch.arange(config.max_position, dtype=torch.float32)[:, None] * frequencies
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
        self.context_kv = linear(hidden, 2 * self.kv_size) if own_context_projections else None
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
        weight = self.qkv.weight[self.query_size :] if self.context_kv is None else self.context_kv.weight
        return self._keys_values(F.linear(context, weight), position, rotate)

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


def attend(query: Tensor, context: KeysValues, visible: Tensor, own: KeysValues | None) -> Tensor:
    """Attention of groups of queries over a common context and each group's own rows.

    query: [n, G, q, heads, head_dim]. context: [n, S, kv_heads, head_dim]. visible: [n, G, S] bool, what a group sees
    of it. own: [n, G, m, kv_heads, head_dim], all seen by its group. Returns [n, G, q, heads * head_dim].
    """
    n, groups, rows, heads, head_dim = query.shape
    kv_heads = context.keys.shape[2]
    query = query.view(n, groups, rows, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    scores = torch.einsum("ngqkhd,nskd->nkgqhs", query, context.keys)
    scores = scores.masked_fill(~visible[:, None, :, None, None, :], float("-inf"))
    if own is not None:
        scores = torch.cat((scores, torch.einsum("ngqkhd,ngmkd->nkgqhm", query, own.keys)), -1)
    weights = scores.softmax(-1)
    length = context.keys.shape[1]
    answer = torch.einsum("nkgqhs,nskd->ngqkhd", weights[..., :length], context.values)
    if own is not None:
        answer = answer + torch.einsum("nkgqhm,ngmkd->ngqkhd", weights[..., length:], own.values)
    return answer.reshape(n, groups, rows, heads * head_dim)
