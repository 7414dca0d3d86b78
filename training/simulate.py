"""Acceptance without serving: drafts from every place of texts that the target wrote, walked as decoding would.

The target's text is fixed by prompt, parameters and seed, so what a drafter gets accepted depends on its drafts alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.drafters.block import BlockDrafter
from python_backend.drafters.layers import KeysValues
from python_backend.drafters.recurrent import RecurrentDrafter
from training.batches import Batch

Choose = Callable[[Tensor, Tensor], Tensor]  # (logits [N, Vd], position [N] of the drafted token) -> draft index [N]


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
        at = int(drafts.anchor[0])
        while at < len(ids) - 1:
            ahead = ids[at + 1 : at + 1 + self.depth]
            drafted = drafts.tokens[at - drafts.anchor[0], : len(ahead)]
            wrong = np.flatnonzero(drafted != ahead)
            accepted = int(wrong[0]) if len(wrong) else len(ahead)
            self.accepted_at[:accepted] += 1
            emitted = min(accepted + 1, len(ids) - 1 - at)
            self.emitted, self.steps, at = self.emitted + emitted, self.steps + 1, at + emitted

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


def greedy(logits: Tensor, _: Tensor) -> Tensor:
    return logits.argmax(-1)


@torch.no_grad()
def draft_everywhere(
    network: BlockDrafter | RecurrentDrafter, batch: Batch, depth: int, choose: Choose = greedy
) -> list[Drafts]:
    """Drafts from every response token of each sequence of a batch."""
    walk = _block if isinstance(network, BlockDrafter) else _recurrent
    results = []
    for i in range(len(batch.rows)):
        rows, start = int(batch.rows[i]), int(batch.start[i])
        one = Batch(*(part[i : i + 1] for part in batch))
        one = one._replace(features=one.features[:, :rows], final=one.final[:, :rows], ids=one.ids[:, : rows + 1])
        anchor = torch.arange(start, rows, device=batch.ids.device)
        tokens, probability = walk(network, one, anchor, depth, choose)  # type: ignore[arg-type]
        results.append(Drafts(anchor.cpu().numpy(), tokens.cpu().numpy(), probability.cpu().numpy()))
    return results


def _block(network: BlockDrafter, one: Batch, anchor: Tensor, depth: int, choose: Choose) -> tuple[Tensor, Tensor]:
    contexts = network.context(one.features, one.positions)
    visible = torch.arange(one.features.shape[1], device=anchor.device) < anchor[None, :, None]
    previous = one.ids[0, anchor]
    hidden = network.block(previous[None], anchor[None], contexts, visible, depth)[0]
    tokens, probabilities = [], []
    for k in range(depth):
        logits = network.logits(network.correct(hidden[:, k], previous), previous)
        previous, probability = _choose(network, logits, anchor + 1 + k, choose)
        tokens.append(previous)
        probabilities.append(probability)
    return torch.stack(tokens, 1), torch.stack(probabilities, 1)


def _recurrent(
    network: RecurrentDrafter, one: Batch, anchor: Tensor, depth: int, choose: Choose
) -> tuple[Tensor, Tensor]:
    state = network.first(one.features, one.ids[:, 1:], one.positions)
    first, row = state.keys_values, anchor - 1
    visible = torch.arange(one.features.shape[1], device=anchor.device) <= row[None, :, None]
    state = type(state)(state.output[:, row], state.carried[:, row], first)
    chain: list[KeysValues] = []
    tokens, probabilities = [], []
    previous = one.ids[0, anchor]
    for k in range(depth):
        logits = network.logits(state.output[0], previous)
        previous, probability = _choose(network, logits, anchor + 1 + k, choose)
        tokens.append(previous)
        probabilities.append(probability)
        if k + 1 < depth:
            state = network.next(state, previous[None], (row + k + 1)[None], first, visible, chain)
    return torch.stack(tokens, 1), torch.stack(probabilities, 1)


def _choose(
    network: BlockDrafter | RecurrentDrafter, logits: Tensor, position: Tensor, choose: Choose
) -> tuple[Tensor, Tensor]:
    index = choose(logits, position)
    probability = (logits.gather(-1, index[:, None]).squeeze(-1) - logits.logsumexp(-1)).exp()
    return network.draft_ids[index], probability


def by_domain(results: Sequence[tuple[str, Acceptance]], depth: int) -> dict[str, Acceptance]:
    """Pooled per domain, and over all as `all`."""
    pooled: dict[str, Acceptance] = defaultdict(lambda: Acceptance(depth))
    for domain, acceptance in results:
        pooled[domain].add(acceptance)
        pooled["all"].add(acceptance)
    return dict(pooled)
