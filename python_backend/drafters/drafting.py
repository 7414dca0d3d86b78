"""From hidden states to drafts: the walk through a chain, the same when serving and when measuring.

What is chosen among the candidates of a draft is `pick`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.layers import Attention
from python_backend.drafters.pick import Pick
from python_backend.drafters.recurrent import RecurrentDrafter, State


class Shortlist(NamedTuple):
    """The likeliest candidates of drafts, best first."""

    tokens: Tensor  # [..., S]
    logits: Tensor  # [..., S]


GoOn = Callable[[list[Tensor]], bool]  # probabilities [N] of each draft so far -> whether the next one can pay


class Drafted(NamedTuple):
    tokens: Tensor  # [N, D]
    probability: Tensor  # [N, D] among the candidates, by the scores that they were chosen by


def always(_: list[Tensor]) -> bool:
    return True


def shortlist(draft_ids: Tensor, logits: Tensor, candidates: int) -> Shortlist:
    """draft_ids: [Vd]; logits: [..., Vd]"""
    best = logits.topk(min(candidates, logits.shape[-1]), dim=-1)
    return Shortlist(draft_ids[best.indices], best.values)


def walk_block(network: BlockDrafter, hidden: Tensor, anchor: Tensor, pick: Pick, go_on: GoOn = always) -> Drafted:
    """Draft slot by slot, up to all of them. hidden: [N, D, hidden] of the slots; anchor: [N] tokens.

    A slot that is corrected by the draft before it has to wait for that draft with its product with the head. To score
    the likeliest tokens of an earlier product alone is cheaper, and loses too much (docs/drafters.md).
    """
    base = network.base_logits(hidden) if network.correction is None else None
    previous, drafts = anchor, []
    for k in range(hidden.shape[1]):
        if base is None:
            logits = network.base_logits(network.correct(hidden[:, k], previous))
        else:
            logits = network.after(base[:, k], previous)
        drafts.append(choose(network.draft_ids, logits, pick, k))
        if k + 1 == hidden.shape[1] or not go_on([probability for _, probability in drafts]):
            break
        previous = drafts[-1][0]
    return _stack(drafts)


def walk_recurrent(
    network: RecurrentDrafter,
    state: State,
    anchor_position: Tensor,
    depth: int,
    attention: Attention,
    pick: Pick,
    go_on: GoOn = always,
) -> Drafted:
    """Draft depth by depth, up to `depth`.

    state: [N, hidden] of the rows whose following token is the anchor. attention: of rows [N, 1], each at the position
    after the one before, from that of the anchor on.
    """
    drafts: list[tuple[Tensor, Tensor]] = []
    for k in range(depth):
        drafts.append(choose(network.draft_ids, network.base_logits(state.output), pick, k))
        if k + 1 == depth or not go_on([probability for _, probability in drafts]):
            break
        token, position = drafts[-1][0][:, None], (anchor_position + k)[:, None]
        following = network.run(state.carried[:, None], token, position, attention)
        state = State(following.output[:, 0], following.carried[:, 0])
    return _stack(drafts)


def choose(draft_ids: Tensor, logits: Tensor, pick: Pick, number: int) -> tuple[Tensor, Tensor]:
    """[N] tokens of a draft, and their probabilities. draft_ids: [Vd]; logits: [N, Vd]; number: of the draft."""
    best = shortlist(draft_ids, logits, pick.candidates)
    return take(best.tokens, pick.scores(best.tokens, best.logits, number))


def take(tokens: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the winners, and their probabilities. tokens, scores: [N, S]"""
    column = scores.argmax(-1, keepdim=True)
    probability = scores.softmax(-1).gather(-1, column)
    return tokens.gather(-1, column).squeeze(-1), probability.squeeze(-1)


def _stack(drafts: list[tuple[Tensor, Tensor]]) -> Drafted:
    tokens, probabilities = zip(*drafts, strict=True)
    return Drafted(torch.stack(tokens, 1), torch.stack(probabilities, 1))
