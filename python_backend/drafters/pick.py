"""How served drafts are chosen: as the target will choose, with its noise, on the drafter's own distribution."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from python_backend.drafters.drafting import Pick, first_choice
from python_backend.protocol import Array
from python_backend.sampling.noise import gumbel


def pick_for(temperature: Array, top_k: Array, top_p: Array, seed: Array, anchor: Array, vocabulary_size: int) -> Pick:
    """Chooses among the candidates of N sequences. All arrays [N]; anchor: position of each anchor."""
    drawn = temperature > 0
    if not drawn.any():
        return first_choice
    rows = torch.from_numpy(np.flatnonzero(drawn))
    heat = torch.from_numpy(temperature[drawn])[:, None]
    most = torch.from_numpy(np.where(top_k[drawn] > 0, top_k[drawn], np.iinfo(np.int32).max))[:, None]
    mass = torch.from_numpy(np.where((top_p[drawn] > 0) & (top_p[drawn] < 1), top_p[drawn], 2.0))[:, None]

    def pick(tokens: Tensor, logits: Tensor, number: int) -> Tensor:
        choice = logits.argmax(-1)
        mine = rows.to(logits.device)
        noise = gumbel(seed[drawn], anchor[drawn] + 1 + number, tokens[mine].cpu().numpy(), vocabulary_size)
        scaled = logits[mine].float().cpu() / heat
        scaled = scaled.masked_fill(~_support(scaled, most, mass), float("-inf"))
        choice[mine] = (scaled + torch.from_numpy(noise)).argmax(-1).to(choice.device)
        return choice

    return pick


def _support(logits: Tensor, most: Tensor, mass: Tensor) -> Tensor:
    """[N, S] candidates that top-k and top-p leave; the mass of tokens that are no candidates is taken as none."""
    ordered, order = logits.sort(dim=-1, descending=True)
    share = ordered.softmax(-1)
    kept = (torch.arange(logits.shape[1]) < most) & (share.cumsum(-1) - share < mass)
    return torch.zeros_like(kept).scatter(-1, order, kept)
