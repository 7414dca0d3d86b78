"""Attention over whole sequences, many drafts of each at once; the readable form of what a cache does when served."""

from __future__ import annotations

import torch
from torch import Tensor

from python_backend.drafters.layers import KeysValues


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


def causal(query: Tensor, own: KeysValues) -> Tensor:
    """[n, S, heads * head_dim] every row sees those up to itself."""
    rows = torch.arange(query.shape[1], device=query.device)
    visible = (rows <= rows[:, None]).expand(len(query), -1, -1)
    return attend(query.unsqueeze(2), own, visible, None).squeeze(2)


class ChainAttention:
    """Of chains [n, R] beyond depth 0: each sees the depth-0 rows up to its first, and its own rows so far."""

    def __init__(self, first: KeysValues, visible: Tensor) -> None:
        """first: of all depth-0 rows [n, S, …]. visible: [n, R, S] bool."""
        self.first, self.visible = first, visible
        self.chain: list[KeysValues] = []

    def __call__(self, _: int, query: Tensor, own: KeysValues) -> Tensor:
        self.chain.append(own)
        chain = KeysValues(*(torch.stack(parts, 2) for parts in zip(*self.chain, strict=True)))
        return attend(query.unsqueeze(2), self.first, self.visible, chain).squeeze(2)
