"""Batches of whole sequences with the target's captured states."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from training.corpus.shards import Sample

LENGTH_JITTER = 24  # rows by which sequences of a batch may differ in length at random


@dataclass(frozen=True, eq=False)
class Text:
    """A sequence of the corpus with what one drafter needs of its features."""

    ids: npt.NDArray[np.int64]  # [n]
    response_start: int  # index of the first token that the target wrote
    states: Tensor  # [n - 1, F + hidden] the captured layers that the drafter reads, then the final hidden state


def read_texts(samples: Iterable[Sample], stored: Sequence[int], layers: Sequence[int], final_layer: int) -> list[Text]:
    """Keep what is needed in memory.

    stored: captured layers of the samples, in order. layers: those that the drafter reads. final_layer: that of the
    final norm's output. Raises ValueError naming a layer that was not captured.
    """
    wanted = (*layers, final_layer)
    if missing := [layer for layer in wanted if layer not in stored]:
        raise ValueError(f"layer {missing[0]} is not among those captured with the corpus: {tuple(stored)}")
    texts = []
    for sample in samples:
        parts = sample.features.unflatten(-1, (len(stored), -1))
        states = parts[:, [stored.index(layer) for layer in wanted]].flatten(1)
        texts.append(Text(sample.ids, sample.response_start, states))
    return texts


class Batch(NamedTuple):
    """n sequences of up to S rows. Row j holds the state after token j; token j + 1 follows it."""

    features: Tensor  # [n, S, F] what the drafter reads
    final: Tensor  # [n, S, hidden] the target's final hidden state
    ids: Tensor  # [n, S + 1]
    rows: Tensor  # [n]
    start: Tensor  # [n] index of the first token of the response

    @property
    def positions(self) -> Tensor:
        """[n, S]"""
        return torch.arange(self.features.shape[1], device=self.ids.device).expand(len(self.rows), -1)


def collate(texts: Sequence[Text], hidden_size: int, device: str) -> Batch:
    """Pad texts to the longest, in float32."""
    states = pad_sequence([text.states for text in texts], batch_first=True).to(device).float()
    return Batch(
        features=states[..., :-hidden_size],
        final=states[..., -hidden_size:],
        ids=pad_sequence([torch.from_numpy(text.ids) for text in texts], batch_first=True).to(device),
        rows=torch.tensor([len(text.ids) - 1 for text in texts], device=device),
        start=torch.tensor([text.response_start for text in texts], device=device),
    )


def epochs(texts: Sequence[Text], tokens: int, seed: int, skip: int = 0) -> Iterator[list[Text]]:
    """Endless batches of up to `tokens` padded rows, each epoch in an order of its own; `skip` of them left out, so
    that a resumed run goes on where it stopped."""
    epoch = 0
    while True:
        order = random.Random(f"{seed}/{epoch}")
        batches = _pack(sorted(texts, key=lambda text: len(text.ids) + order.random() * LENGTH_JITTER), tokens)
        order.shuffle(batches)
        yield from batches[skip:]
        skip = max(0, skip - len(batches))
        epoch += 1


def _pack(texts: list[Text], tokens: int) -> list[list[Text]]:
    batches: list[list[Text]] = []
    current: list[Text] = []
    for text in texts:
        if current and max(len(t.ids) for t in (*current, text)) * (len(current) + 1) > tokens:
            batches.append(current)
            current = []
        current.append(text)
    return [*batches, current] if current else batches
