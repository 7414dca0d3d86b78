"""How good drafters are on texts they were not trained on: a table and a plot, by fast path simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.drafters.pick import RACING
from python_backend.sampling.noise import exponentials
from training.corpus.shards import Sample
from training.evaluate.simulate import Acceptance, Drafts, Network, draft_everywhere
from training.fit.batches import Text, collate


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Texts to measure on, and how each was sampled."""

    texts: Sequence[Text]
    samples: Sequence[Sample]


class NoisyPick:
    """Races with the target's own noise, the whole field of each position. Anchors are `first_position`,
    `first_position` + 1, …"""

    candidates = RACING

    def __init__(self, seed: int, temperature: float, vocabulary_size: int, first_position: int) -> None:
        self.seed, self.temperature = seed, temperature
        self.vocabulary_size, self.first_position = vocabulary_size, first_position
        self._fields: dict[int, npt.NDArray[np.float32]] = {}

    def scores(self, tokens: Tensor, logits: Tensor, number: int) -> Tensor:
        first = self.first_position + 1 + number
        noise = [self._field(first + i)[row] for i, row in enumerate(tokens.cpu().numpy())]
        return logits + torch.from_numpy(np.array(noise)).to(logits.device)

    def _field(self, position: int) -> npt.NDArray[np.float32]:
        if position not in self._fields:
            gumbel = -np.log(exponentials(self.seed, position, self.vocabulary_size))
            self._fields[position] = (self.temperature * gumbel).astype(np.float32)
        return self._fields[position]


def draft_text(network: Network, text: Text, sample: Sample, depth: int, greedy: bool = False) -> Drafts:
    """Drafts from every token of a text's response, sampled as the text was; or each the likeliest."""
    batch = collate([text], network.config.hidden_size, network.head.device.type)
    if sample.temperature == 0 or greedy:
        return draft_everywhere(network, batch, depth)[0]
    return draft_everywhere(
        network,
        batch,
        depth,
        lambda anchors: NoisyPick(sample.seed, sample.temperature, network.config.vocabulary_size, int(anchors[0])),
    )[0]


def evaluate(network: Network, held_out: HeldOut, depth: int, greedy: bool = False) -> dict[str, Acceptance]:
    """Acceptance pooled per domain, and over all as `all`."""
    network.eval()
    results = []
    for text, sample in zip(held_out.texts, held_out.samples, strict=True):
        acceptance = Acceptance(depth)
        acceptance.walk(text.ids, draft_text(network, text, sample, depth, greedy))
        results.append((sample.domain, acceptance))
    return pool(results, depth)


def pool(results: Iterable[tuple[str, Acceptance]], depth: int) -> dict[str, Acceptance]:
    pooled: dict[str, Acceptance] = {}
    for domain, acceptance in results:
        for name in (domain, "all"):
            pooled.setdefault(name, Acceptance(depth)).add(acceptance)
    return dict(sorted(pooled.items()))
