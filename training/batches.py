"""Batches of whole sequences with the target's captured states."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LENGTH_JITTER = 24  # rows by which sequences of a batch may differ in length at random


class Text(Protocol):
    """A sequence of the corpus."""

    ids: npt.NDArray[np.int64]  # [L]
    response_start: int  # index of the first token that the target wrote

    def features(self, layers: Sequence[int]) -> npt.NDArray[Any]: ...  # [at least L - 1, len(layers) * hidden]


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


def collate(texts: Sequence[Text], layers: tuple[int, ...], final_layer: int, device: str) -> Batch:
    """layers: captured ones that the drafter reads; final_layer: that of the final norm's output."""
    rows = [len(text.ids) - 1 for text in texts]
    longest = max(rows)
    states = [torch.from_numpy(np.asarray(text.features((*layers, final_layer)), dtype=np.float32)) for text in texts]
    width = states[0].shape[1] // (len(layers) + 1)
    features = torch.zeros(len(texts), longest, states[0].shape[1])
    ids = torch.zeros(len(texts), longest + 1, dtype=torch.int64)
    for i, (text, n) in enumerate(zip(texts, rows, strict=True)):
        features[i, :n] = states[i][:n]
        ids[i, : n + 1] = torch.from_numpy(text.ids)
    features = features.to(device)
    return Batch(
        features=features[..., :-width],
        final=features[..., -width:],
        ids=ids.to(device),
        rows=torch.tensor(rows, device=device),
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
