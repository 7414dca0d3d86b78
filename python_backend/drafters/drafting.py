"""From candidates to drafts: the walk through a chain, the same for every session, and when measuring.

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


class Started(NamedTuple):
    """Drafts of N sequences that wait to be picked, one after the other."""

    first: Shortlist  # [N, S]
    follow: Callable[[int, Tensor], Shortlist]  # number of the next draft, [N] tokens of the one before -> [N, S]


class Drafted(NamedTuple):
    """Chains of N sequences, D drafts each."""

    tokens: Tensor  # [N, D]
    probability: Tensor  # [N, D] among the candidates, by the scores that they were chosen by


GoOn = Callable[[Tensor], bool]  # probability [N] of the draft just made -> whether the next one can pay


def shortlist(draft_ids: Tensor, logits: Tensor, candidates: int) -> Shortlist:
    """draft_ids: [Vd]; logits: [..., Vd]"""
    best = logits.topk(min(candidates, logits.shape[-1]), dim=-1)
    return Shortlist(draft_ids[best.indices], best.values)


def walk(started: Started, depth: int, pick: Pick, go_on: GoOn | None = None) -> Drafted:
    """Draft by draft, up to `depth`."""
    best, tokens, scores, columns = started.first, [], [], []
    for number in range(depth):
        scores.append(pick.scores(best.tokens, best.logits, number))
        columns.append(scores[-1].argmax(-1, keepdim=True))
        tokens.append(best.tokens.gather(-1, columns[-1]))
        if number + 1 == depth or (go_on and not go_on(_share(scores[-1], columns[-1]).squeeze(-1))):
            break
        best = started.follow(number + 1, tokens[-1].squeeze(-1))
    probability = _share(torch.stack(scores, 1), torch.stack(columns, 1))  # for all drafts at once
    return Drafted(torch.cat(tokens, 1), probability.squeeze(-1))


def block_start(network: BlockDrafter, hidden: Tensor, anchor: Tensor, candidates: int) -> Started:
    """hidden: [N, D, hidden] of the slots; anchor: [N] tokens.

    A slot that is corrected by the draft before it has to wait for that draft with its product with the head. To score
    the likeliest tokens of an earlier product alone is cheaper, and loses too much (docs/drafters.md).
    """
    base = network.base_logits(hidden) if network.correction is None else None

    def follow(number: int, previous: Tensor) -> Shortlist:
        if base is None:
            logits = network.base_logits(network.correct(hidden[:, number], previous))
        else:
            logits = network.after(base[:, number], previous)
        return shortlist(network.draft_ids, logits, candidates)

    return Started(follow(0, anchor), follow)


def recurrent_start(
    network: RecurrentDrafter, state: State, anchor_position: Tensor, attention: Attention, candidates: int
) -> Started:
    """state: [N, hidden] of the rows whose following token is the anchor. attention: of rows [N, 1], each at the
    position after the one before, from that of the anchor on."""
    last = state

    def best() -> Shortlist:
        return shortlist(network.draft_ids, network.base_logits(last.output), candidates)

    def follow(number: int, previous: Tensor) -> Shortlist:
        nonlocal last
        position = (anchor_position + number - 1)[:, None]
        following = network.run(last.carried[:, None], previous[:, None], position, attention)
        last = State(following.output[:, 0], following.carried[:, 0])
        return best()

    return Started(best(), follow)


def take(tokens: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the winners, and their probabilities. tokens, scores: [N, S]"""
    column = scores.argmax(-1, keepdim=True)
    return tokens.gather(-1, column).squeeze(-1), _share(scores, column).squeeze(-1)


def _share(scores: Tensor, column: Tensor) -> Tensor:
    """[..., 1] of scores [..., S] in a column [..., 1]."""
    return scores.softmax(-1).gather(-1, column)
