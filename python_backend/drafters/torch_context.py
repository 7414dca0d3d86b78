"""The context of every slot in torch's memory: dense, read where it is by slots that are neighbours."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.layers import KeysValues
from python_backend.engines.torch_attention import lazy_zeros
from python_backend.protocol import Array


class TorchContext:
    """[layers][slots, kv_heads, rows, head_dim]"""

    def __init__(self, config: DrafterConfig, slots: int, rows: int, dtype: torch.dtype, device: str) -> None:
        self.config, self.slots, self.rows, self.dtype, self.device = config, slots, rows, dtype, device
        shape = (slots, config.kv_heads, rows, config.head_dim)
        self.keys = [lazy_zeros(shape, dtype, device) for _ in range(config.layers)]
        self.values = [lazy_zeros(shape, dtype, device) for _ in range(config.layers)]

    def write(self, layer: int, slot: Tensor, position: Tensor, rows: KeysValues) -> None:
        """Store rows [..., kv_heads, head_dim] at (slot, position) [...]."""
        self.keys[layer][slot, :, position] = rows.keys.to(self.keys[layer].dtype)
        self.values[layer][slot, :, position] = rows.values.to(self.values[layer].dtype)

    def attend(self, layer: int, query: Tensor, slot: Array, seen: Array) -> Tensor:
        """[b, q, heads * head_dim] of queries [b, q, heads, head_dim]; row (i, j) sees the first seen[i, j] rows of
        its slot. Query heads that share a key head are folded into its rows, so keys are read once."""
        b, q, heads, head_dim = query.shape
        kv_heads, group, length = self.config.kv_heads, heads // self.config.kv_heads, int(seen.max())
        keys, values = (_rows_of(cache[:, :, :length], slot) for cache in (self.keys[layer], self.values[layer]))
        folded = query.view(b, q, kv_heads, group, head_dim).permute(0, 2, 1, 3, 4).reshape(b, kv_heads, -1, head_dim)
        mask = None
        if seen.min() < length:
            limits = torch.from_numpy(np.repeat(seen, group, axis=1)).to(self.device)
            mask = (torch.arange(length, device=self.device) < limits[:, :, None])[:, None]
        answer = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        return answer.view(b, kv_heads, q, group, head_dim).permute(0, 2, 1, 3, 4).reshape(b, q, heads * head_dim)

    def tensor(self, values: Array) -> Tensor:
        """Indices, where the context is."""
        return torch.from_numpy(values.astype(np.int64)).to(self.device)

    def floats(self, values: Array | Tensor) -> Tensor:
        """Features, where the context is and in its type; those that a target in the process left there stay."""
        return torch.as_tensor(values).to(self.device, self.dtype)


def _rows_of(cache: Tensor, slot: Array) -> Tensor:
    """The slots' part of a cache: a view where they are neighbours in order."""
    if (np.diff(slot) == 1).all():
        return cache[int(slot[0]) : int(slot[-1]) + 1]
    return cache[torch.from_numpy(slot.astype(np.int64)).to(cache.device)]
