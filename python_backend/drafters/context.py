"""The drafter's memory of each slot: keys and values of the committed context, and how many rows of it there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from python_backend.drafters.config import DrafterConfig
from python_backend.drafters.layers import KeysValues
from python_backend.engines.slots import check_held, check_known, check_slots
from python_backend.engines.torch_attention import lazy_zeros
from python_backend.protocol import NO_TOKEN, Array, DrafterStep, ProtocolError


class Context:
    """[layers][slots, kv_heads, length, head_dim]; a draft's own rows lie beyond the committed ones until the next."""

    def __init__(
        self, config: DrafterConfig, layers: int, slots: int, max_length: int, dtype: torch.dtype, device: str
    ) -> None:
        self.config, self.slots, self.max_length = config, slots, max_length
        self.dtype, self.device = dtype, device
        self.stored: npt.NDArray[np.int32] = np.zeros(slots, dtype=np.int32)
        shape = (slots, config.kv_heads, max_length + config.depth + 1, config.head_dim)
        self.keys = [lazy_zeros(shape, dtype, device) for _ in range(layers)]
        self.values = [lazy_zeros(shape, dtype, device) for _ in range(layers)]

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

    def begin(self, step: DrafterStep) -> None:
        """Check a step and roll its slots back to past_length. Raises ProtocolError naming the tensor, the value and
        the limit; nothing has changed then."""
        step.check()
        check_slots(step.slot, self.slots)
        check_held(step.slot, step.past_length, self.stored)
        ends = step.past_length.astype(np.int64) + step.context_count
        for i in np.flatnonzero(ends > self.max_length):
            raise ProtocolError(
                f"tensor 'context_count' is {step.context_count[i]} for slot {step.slot[i]} after "
                f"{step.past_length[i]} rows, limit {self.max_length} in all"
            )
        if len(step.features) and step.features.shape[1] != self.config.feature_size:
            raise ProtocolError(
                f"tensor 'features' has {step.features.shape[1]} columns, expected {self.config.feature_size}: layers "
                f"{self.config.feature_layers} of {self.config.hidden_size}"
            )
        limit = self.config.vocabulary_size
        for name, ids, least in (("token_ids", step.token_ids, 0), ("anchor", step.anchor, NO_TOKEN)):
            for i in np.flatnonzero((ids < least) | (ids >= limit)):
                raise ProtocolError(f"tensor '{name}' is {ids[i]} in row {i}, limit {least} to {limit - 1}")
        self.stored[step.slot] = ends

    def release(self, slot: Array) -> None:
        """Empty slots. Raises ProtocolError for one that does not exist."""
        check_known(slot, self.slots)
        self.stored[slot] = 0

    def tensor(self, values: Array) -> Tensor:
        """Indices, where the cache is."""
        return torch.from_numpy(values.astype(np.int64)).to(self.device)


def _rows_of(cache: Tensor, slot: Array) -> Tensor:
    """The slots' part of a cache: a view where they are neighbours in order."""
    if (np.diff(slot) == 1).all():
        return cache[int(slot[0]) : int(slot[-1]) + 1]
    return cache[torch.from_numpy(slot.astype(np.int64)).to(cache.device)]
