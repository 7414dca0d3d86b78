"""Which tokens a drafter can draft, and the scale of the features it reads; both from the corpus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from training.fit.batches import Text

UNSEEN = 0.01  # count of a token that never came, falling with its rank in the byte-pair vocabulary
SAMPLE = 200  # texts whose features are looked at


def choose_vocabulary(texts: Sequence[Text], vocabulary_size: int, size: int, always: Sequence[int]) -> Tensor:
    """[size] ascending ids: those of `always`, then the most frequent, then by rank. Raises ValueError for more than
    there are."""
    if size > vocabulary_size:
        raise ValueError(f"draft_vocabulary_size is {size}, the target has {vocabulary_size} tokens")
    counts = UNSEEN * (1 - np.arange(vocabulary_size) / vocabulary_size)
    for text in texts:
        np.add.at(counts, text.ids, 1.0)
    counts[list(always)] = np.inf
    chosen = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(chosen))


def coverage(texts: Sequence[Text], draft_ids: Tensor) -> float:
    """Share of response tokens that can be drafted: an upper bound of every acceptance."""
    tokens = np.concatenate([text.ids[text.response_start :] for text in texts])
    return float(np.isin(tokens, draft_ids.numpy()).mean())


def measure_scale(texts: Sequence[Text], layers: int, hidden_size: int) -> Tensor:
    """[layers] factor that brings each captured layer to unit size. Position 0, where outliers gather, is left out."""
    states = torch.cat([text.states[1:, : layers * hidden_size].float() for text in texts[:SAMPLE]])
    return 1 / states.unflatten(-1, (layers, hidden_size)).pow(2).mean((0, 2)).sqrt().cpu()
