"""Acceptance without serving: drafts from every place of texts that the target wrote, walked as decoding would.

The target's text is fixed by prompt, parameters and seed, so what a drafter gets accepted depends on its drafts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.drafting import Drafted, block_start, recurrent_start, walk
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.pick import FirstChoice, Pick
from python_backend.drafters.recurrent import RecurrentDrafter, State
from training.fit.attention import ChainAttention, attend
from training.fit.batches import Batch
from training.fit.unroll import run_first

Network = BlockDrafter | RecurrentDrafter
PickAt = Callable[[npt.NDArray[np.int64]], Pick]


class Drafts(NamedTuple):
    """Drafts of one sequence from every anchor of its response."""

    anchor: npt.NDArray[np.int64]  # [A] index of the anchor's token
    tokens: npt.NDArray[np.int64]  # [A, D]
    probability: npt.NDArray[np.float32]  # [A, D] that the drafter gives what it drafted


@dataclass
class Acceptance:
    """Counts of walked texts. Mean acceptance length pools tokens over steps, the target's own token included."""

    depth: int
    emitted: int = 0
    steps: int = 0
    accepted_at: npt.NDArray[np.int64] = field(init=False)  # [D] steps whose first k drafts were accepted

    def __post_init__(self) -> None:
        self.accepted_at = np.zeros(self.depth, dtype=np.int64)

    def walk(self, ids: npt.NDArray[np.int64], drafts: Drafts) -> None:
        """One text: a step at its first response token, then wherever the step before ended."""
        at = first = int(drafts.anchor[0])
        while at < len(ids) - 1:
            at += self.step(drafts.tokens[at - first], ids[at + 1 :])

    def step(self, drafted: npt.NDArray[Any], ahead: npt.NDArray[np.int64]) -> int:
        """One decoding step. drafted: [up to D]; ahead: what the target writes. Returns how many tokens it emits."""
        drafted, expected = drafted[: len(ahead)], ahead[: len(drafted)]
        wrong = np.flatnonzero(drafted != expected)
        accepted = int(wrong[0]) if len(wrong) else len(expected)
        emitted = min(accepted + 1, len(ahead))
        self.accepted_at[:accepted] += 1
        self.emitted, self.steps = self.emitted + emitted, self.steps + 1
        return emitted

    def add(self, other: Acceptance) -> None:
        self.emitted, self.steps = self.emitted + other.emitted, self.steps + other.steps
        self.accepted_at += other.accepted_at

    @property
    def mean_length(self) -> float:
        return self.emitted / max(self.steps, 1)

    @property
    def cumulative(self) -> npt.NDArray[np.float64]:
        """[D] share of steps whose first k drafts were accepted."""
        return self.accepted_at / max(self.steps, 1)

    @property
    def conditional(self) -> npt.NDArray[np.float64]:
        """[D] share of draft k accepted among steps whose earlier drafts were."""
        before = np.concatenate(([self.steps], self.accepted_at[:-1]))
        return self.accepted_at / np.maximum(before, 1)


@torch.no_grad()
def draft_everywhere(
    network: Network, batch: Batch, depth: int, pick_at: PickAt = lambda _: FirstChoice()
) -> list[Drafts]:
    """Drafts from every response token of each sequence of a batch. pick_at: chooses, given the anchors' positions."""
    results = []
    for i in range(len(batch.rows)):
        rows, start = int(batch.rows[i]), int(batch.start[i])
        one = Batch(*(part[i : i + 1] for part in batch))
        one = one._replace(features=one.features[:, :rows], final=one.final[:, :rows], ids=one.ids[:, : rows + 1])
        anchor = torch.arange(start, rows, device=batch.ids.device)
        walk = _block if isinstance(network, BlockDrafter) else _recurrent
        drafted = walk(network, one, anchor, depth, pick_at(anchor.cpu().numpy()))  # type: ignore[arg-type]
        results.append(Drafts(anchor.cpu().numpy(), drafted.tokens.cpu().numpy(), drafted.probability.cpu().numpy()))
    return results


def _block(network: BlockDrafter, one: Batch, anchor: Tensor, depth: int, pick: Pick) -> Drafted:
    contexts = network.context(one.features, one.positions)
    visible = torch.arange(one.features.shape[1], device=anchor.device) < anchor[None, :, None]
    tokens = one.ids[0, anchor]
    hidden = network.block(
        tokens[None], anchor[None], depth, lambda i, query, own: attend(query, contexts[i], visible, own)
    )
    return walk(block_start(network, hidden[0], tokens, pick.candidates), depth, pick)


def _recurrent(network: RecurrentDrafter, one: Batch, anchor: Tensor, depth: int, pick: Pick) -> Drafted:
    state, first = run_first(network, one)
    row = anchor - 1
    visible = torch.arange(one.features.shape[1], device=anchor.device) <= row[None, :, None]
    chain = ChainAttention(first, visible)

    def attention(i: int, query: Tensor, own: KeysValues) -> Tensor:
        """Chains are rows [N, 1] to the walk, and [1, N] to their sequence."""
        mine = KeysValues(own.keys.transpose(0, 1), own.values.transpose(0, 1))
        return chain(i, query.transpose(0, 1), mine).transpose(0, 1)

    start = State(state.output[0, row], state.carried[0, row])
    return walk(recurrent_start(network, start, anchor, attention, pick.candidates), depth, pick)
