"""How drafts are chosen among their candidates: the likeliest, or as the target will choose, with its own noise.

Above temperature 0 a drafter races with the noise of `sampling.noise` on its own distribution, so it agrees with the
target as often as their distributions resemble each other.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from python_backend.protocol import Array
from python_backend.sampling import noise
from python_backend.sampling import noise_torch as device_noise
from python_backend.sampling.corners import heat_of

LIKELIEST = 32  # candidates of a draft at temperature 0
RACING = 512  # above, for noise lifts tokens that are not among the likeliest (docs/drafters.md)
FEWEST = 128  # above, of each of several sequences: to find more costs more than it gains there
HOTTEST = 1e30  # beyond, logits are nothing beside the noise, which must stay finite in their units


class Pick(Protocol):
    """Chooses for N sequences."""

    candidates: int  # of each draft that are of use to it

    def scores(self, tokens: Tensor, logits: Tensor, number: int) -> Tensor:
        """[N, S] of which the highest wins; their softmax says how clearly. tokens, logits: [N, S] candidates of draft
        `number`, which follows as many others; best first."""
        ...


class FirstChoice:
    """The likeliest token: what temperature 0 verifies."""

    candidates = LIKELIEST

    def scores(self, tokens: Tensor, logits: Tensor, number: int) -> Tensor:  # noqa: ARG002 (part of an interface)
        return logits


class Race:
    """Sequences at temperature 0 among them take their first choice, as if they were alone."""

    def __init__(
        self, temperature: Array, top_k: Array, top_p: Array, seed: Array, anchor: Array, vocabulary_size: int
    ) -> None:
        """All arrays [N]. anchor: position of each anchor."""
        self.heat = np.minimum(heat_of(temperature), np.float32(HOTTEST))
        self.candidates = max(FEWEST, RACING // len(temperature))
        self.seed, self.anchor, self.vocabulary_size = seed, anchor, vocabulary_size
        self.most = np.where(top_k > 0, top_k, np.iinfo(np.int32).max)
        self.mass = np.where((top_p > 0) & (top_p < 1), top_p, np.inf)
        self.bounded = bool(np.isfinite(self.mass).any() or (top_k > 0).any())

    def scores(self, tokens: Tensor, logits: Tensor, number: int) -> Tensor:
        scores = logits.float() + self._noise(tokens, number)
        return scores.masked_fill(~self._support(logits), -torch.inf) if self.bounded else scores

    def _noise(self, tokens: Tensor, number: int) -> Tensor:
        """[N, S] in units of logits; -inf where a token is no candidate."""
        position, device = self.anchor + 1 + number, tokens.device
        if device.type == "cpu":  # where numpy is three times as fast as torch
            gumbel = torch.from_numpy(noise.gumbel(self.seed, position, tokens.numpy(), self.vocabulary_size))
        else:
            keys = device_noise.keys_of(self.seed, position, device)
            gumbel = device_noise.gumbel(tokens, keys, self.vocabulary_size)
        heat = torch.from_numpy(self.heat)[:, None].to(device)
        scaled = gumbel.float() * heat
        scaled[:, LIKELIEST:].masked_fill_(heat <= 0, -torch.inf)
        return scaled

    def _support(self, logits: Tensor) -> Tensor:
        """[N, S] candidates that top-k and top-p leave; the mass of tokens that are no candidates is taken as none."""
        most, mass, heat = (
            torch.from_numpy(values)[:, None].to(logits.device) for values in (self.most, self.mass, self.heat)
        )
        ordered, order = logits.float().sort(dim=-1, descending=True)
        share = (ordered / torch.where(heat > 0, heat, 1)).softmax(-1)
        kept = (torch.arange(logits.shape[1], device=logits.device) < most) & (share.cumsum(-1) - share < mass)
        return torch.zeros_like(kept).scatter(-1, order, kept)


def pick_for(temperature: Array, top_k: Array, top_p: Array, seed: Array, anchor: Array, vocabulary_size: int) -> Pick:
    """Chooses as requests ask. All arrays [N]; anchor: position of each anchor."""
    if not heat_of(temperature).any():
        return FirstChoice()
    return Race(temperature, top_k, top_p, seed, anchor, vocabulary_size)
