"""Eight-bit weights for drafters on a CPU, where reading the weights is what a draft costs.

Only drafts change, never the output. The products are torch's own (FBGEMM), with activations rounded as they come.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from python_backend.drafters.layers import DraftLayer, Norm
from python_backend.drafters.network import DraftNetwork

RAW_INPUTS = ("basis", "fuse")  # they read unnormed states, whose outliers would swamp a common scale


class Int8Linear(nn.Module):
    """x -> x weight^T with one scale a row of the weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        scales = weight.abs().amax(1).clamp_min(1e-8) / 127
        with warnings.catch_warnings():  # torch means to drop these tensors some day; its release is pinned
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(
                weight.detach(), scales.double(), torch.zeros(len(weight), dtype=torch.int64), 0, torch.qint8
            )
            self.packed = torch.ops.quantized.linear_prepack(rounded, None)

    def forward(self, x: Tensor) -> Tensor:
        # reduce_range: without VNNI two products of full range overflow their common 16 bits
        flat = x.reshape(-1, x.shape[-1])
        return torch.ops.quantized.linear_dynamic(flat, self.packed, reduce_range=True).view(*x.shape[:-1], -1)


class LightNorm(nn.Module):
    """A root-mean-square norm for few rows, where torch's own, made of seven operations, takes three times as long."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        size = norm.weight.shape[0]
        self.weight = norm.weight.detach() * size**0.5
        self.least = (size * norm.epsilon) ** 0.5  # a bound instead of a summand: rows are never that short

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(self.least))


def quantise(network: DraftNetwork) -> None:
    """Replace the large products and the norms of a network, which cannot be trained any more."""
    for module in list(network.modules()):
        if isinstance(module, DraftLayer) and module.context_kv is None:
            module.context_kv = Int8Linear(module.qkv.weight[module.query_size :])
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Norm):
                setattr(module, name, LightNorm(child))
            if isinstance(child, nn.Linear) and name not in RAW_INPUTS:
                setattr(module, name, Int8Linear(child.weight))
    network.head_product = Int8Linear(network.head)
