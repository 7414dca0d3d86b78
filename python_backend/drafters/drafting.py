"""From hidden states to drafts: the walk through a chain, the same when serving and when measuring.

At temperature 0 a drafter takes its first choice. Above, it races with the target's own noise (`sampling.noise`), so it
agrees with the target as often as their distributions resemble each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.layers import Attention
from python_backend.drafters.recurrent import RecurrentDrafter, State

SHORTLIST = 32  # candidates of a draft; a head that walks through a block looks at no others


class Shortlist(NamedTuple):
    """The likeliest candidates of N drafts, best first before any correction."""

    candidate: Tensor  # [N, S] draft indices
    logits: Tensor  # [N, S]


Pick = Callable[[Tensor, Tensor, int], Tensor]  # (tokens [N, S], logits [N, S], draft number) -> column chosen [N]
GoOn = Callable[[list[Tensor]], bool]  # probabilities [N] of each draft so far -> whether the next one can pay


class Drafted(NamedTuple):
    tokens: Tensor  # [N, D]
    probability: Tensor  # [N, D] among the candidates, before temperature


def always(_: list[Tensor]) -> bool:
    return True


def first_choice(_: Tensor, logits: Tensor, __: int) -> Tensor:
    return logits.argmax(-1)


def shortlist(logits: Tensor) -> Shortlist:
    """logits: [N, Vd]"""
    best = logits.topk(min(SHORTLIST, logits.shape[-1]), dim=-1)
    return Shortlist(best.indices, best.values)


def walk_block(network: BlockDrafter, hidden: Tensor, anchor: Tensor, pick: Pick) -> Drafted:
    """Draft slot by slot. hidden: [N, D, hidden] of the slots; anchor: [N] tokens.

    Candidates come from one product with the head for all slots; only they are scored anew once the draft before is
    known. What that loses is measured in docs/drafters.md.
    """
    n, depth, _ = hidden.shape
    candidates = shortlist(network.base_logits(hidden.flatten(0, 1)))
    index, base = candidates.candidate.view(n, depth, -1), candidates.logits.view(n, depth, -1)
    previous, drafts = anchor, []
    for k in range(depth):
        logits = network.rescore(hidden[:, k], previous, index[:, k], base[:, k])
        drafts.append(_take(network.draft_ids[index[:, k]], logits, pick, k))
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
        candidates = shortlist(network.base_logits(state.output))
        drafts.append(_take(network.draft_ids[candidates.candidate], candidates.logits, pick, k))
        if k + 1 < depth:
            if not go_on([probability for _, probability in drafts]):
                break
            token, position = drafts[-1][0][:, None], (anchor_position + k)[:, None]
            following = network.run(state.carried[:, None], token, position, attention)
            state = State(following.output[:, 0], following.carried[:, 0])
    return _stack(drafts)


def _take(tokens: Tensor, logits: Tensor, pick: Pick, number: int) -> tuple[Tensor, Tensor]:
    column = pick(tokens, logits, number)[:, None]
    probability = logits.softmax(-1).gather(-1, column)
    return tokens.gather(-1, column).squeeze(-1), probability.squeeze(-1)


def _stack(drafts: list[tuple[Tensor, Tensor]]) -> Drafted:
    tokens, probabilities = zip(*drafts, strict=True)
    return Drafted(torch.stack(tokens, 1), torch.stack(probabilities, 1))
