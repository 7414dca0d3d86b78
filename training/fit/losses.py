"""What a draft chain is trained for. All work on whole chains: probabilities [N, D, Vd] of N chains of D drafts.

Formulas: LK (forward KL moving to total variation as they agree), D-PACE position weights and the end-to-end expected
accepted length are those of arXiv:2607.25852 and its training code; see docs/drafters.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LossName = Literal["ce", "kl", "lk", "tv", "e2e"]
Weighting = Literal["uniform", "decay", "dpace"]

LK_SHARPNESS = 3.0  # eta
DPACE_FLOOR = 0.5  # alpha_s
DECAY = 0.8


class Chains(NamedTuple):
    """N chains of D drafts, and what the target thinks at each."""

    logits: Tensor  # [N, D, Vd] the drafter's
    teacher: Tensor  # [N, D, Vd] the target's probabilities over the tokens that can be drafted
    token: Tensor  # [N, D] draft index of the token that really came; -1 where it cannot be drafted
    valid: Tensor  # [N, D] bool: a prefix of each chain


def accepted(chains: Chains) -> Tensor:
    """[N, D] alpha = sum min(p, q) = 1 - TV: how often a sampled draft is accepted; 1 where nothing is drafted."""
    q = chains.logits.softmax(-1)
    alpha = 1 - 0.5 * (q - chains.teacher).abs().sum(-1)
    return torch.where(chains.valid, alpha, 1.0)


def expected_length(alpha: Tensor, valid: Tensor) -> Tensor:
    """[N] expected number of accepted drafts: the sum of the prefix products."""
    return (alpha.cumprod(-1) * valid).sum(-1)


def position_weights(chains: Chains, weighting: Weighting) -> Tensor:
    """[N, D] without gradient; 0 where nothing is drafted."""
    depth = chains.valid.shape[1]
    if weighting == "uniform":
        return chains.valid.float()
    if weighting == "decay":
        return chains.valid * DECAY ** torch.arange(depth, device=chains.valid.device)
    with torch.no_grad():
        index = chains.token.clamp_min(0).unsqueeze(-1)
        chosen = chains.logits.gather(-1, index).squeeze(-1) - chains.logits.logsumexp(-1)
        confidence = torch.where(chains.token < 0, 0.0, chosen.exp())
        reached = ((1 - DPACE_FLOOR) * confidence + DPACE_FLOOR).masked_fill(~chains.valid, 1.0).cumprod(-1)
        return (reached * chains.valid).flip(-1).cumsum(-1).flip(-1) * chains.valid


def loss(chains: Chains, name: LossName, weighting: Weighting, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of weighted losses, sum of weights). scale: [N, D] further weights, as for chains already off the path.

    `e2e` weighs chains alone: 1 - E[accepted] / D.
    """
    if name == "e2e":
        alpha, drafted = accepted(chains), chains.valid.sum(-1)
        chain = scale[:, 0] * (drafted > 0)
        return (chain * (1 - expected_length(alpha, chains.valid) / drafted.clamp_min(1))).sum(), chain.sum()
    weights = position_weights(chains, weighting) * scale
    return (weights * _per_position(chains, name)).sum(), weights.sum()


def _per_position(chains: Chains, name: LossName) -> Tensor:
    if name == "ce":  # on the target's own choice, which exists even where the token that came cannot be drafted
        return F.cross_entropy(chains.logits.flatten(0, 1), chains.teacher.argmax(-1).flatten(), reduction="none").view(
            chains.valid.shape
        )
    log_q = chains.logits.log_softmax(-1)
    tv = 0.5 * (log_q.exp() - chains.teacher).abs().sum(-1)
    if name == "tv":
        return tv
    kl = torch.special.xlogy(chains.teacher, chains.teacher).sum(-1) - (chains.teacher * log_q).sum(-1)
    if name == "kl":
        return kl
    share = torch.exp(-LK_SHARPNESS * (1 - tv.detach()))
    return share * kl + (1 - share) * tv
