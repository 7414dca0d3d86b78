"""What follows attention in a decoder layer: a gated network, or a mixture of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Rows = Callable[[Tensor], Tensor]  # [R, in] -> [R, out]


def gated(gate_up: Rows, down: Rows) -> Rows:
    """gate_up: hidden -> 2 * width, the gate first. down: width -> hidden."""

    def run(rows: Tensor) -> Tensor:
        gate, up = gate_up(rows).chunk(2, dim=-1)
        return down(F.silu(gate).mul_(up))

    return run


def mixture(router: Rows, experts: Sequence[Rows], per_token: int, renormalise: bool) -> Rows:
    """router: hidden -> score of each expert. Each row passes the `per_token` best and takes their weighted sum.

    The weights are probabilities over all experts, in float32; renormalise: they sum to one over the chosen.
    """

    def run(rows: Tensor) -> Tensor:
        weight, chosen = router(rows).float().softmax(dim=-1).topk(per_token, dim=-1)
        if renormalise:
            weight /= weight.sum(dim=-1, keepdim=True)
        weight = weight.to(rows.dtype)
        result = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            row, place = torch.where(chosen == expert)
            result.index_add_(0, row, experts[expert](rows[row]) * weight[row, place, None])
        return result

    return run
