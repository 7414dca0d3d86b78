"""D-cut (arXiv:2607.25852): one verification budget, ranked over all draft positions of all sequences.

Pure functions. B sequences, D the widest draft; a position (i, k) is the k-th draft of sequence i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.protocol import Array

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Choice(NamedTuple):
    """What is verified in one step."""

    kept: Ints  # [B] drafts kept of each sequence, always a prefix
    rows: int  # K = B + kept.sum()
    rho: float  # the grid's fraction that won; rows / full rows for policies without a grid
    expected_tokens: float  # B + sum of the kept scores
    predicted_ms: float  # from the cost table; nan without one


class Ranking(NamedTuple):
    """All positions that hold a draft, best first."""

    sequence: Ints  # [P]
    score: Floats  # [P] non-increasing


def survival(confidence: Array) -> Floats:
    """[B, D] s_ik = P(the first k drafts are accepted): the running product of the confidences."""
    survived: Floats = np.cumprod(np.clip(confidence, 0.0, 1.0), axis=1, dtype=np.float64)
    return survived


def rank(scores: Floats, available: Array) -> Ranking:
    """Order positions by (score down, k up, i up). scores: [B, D]; available: [B] drafts that exist.

    Scores never rise along k, so every head of the ranking is a set of prefixes.
    """
    sequence, k = np.nonzero(np.arange(scores.shape[1]) < available[:, None])
    score = scores[sequence, k]
    order = np.lexsort((sequence, k, -score))
    return Ranking(sequence[order], score[order])


def grid_rows(rho: float, batch: int, full_drafts: int) -> int:
    """K_rho = max(B, ceil(rho (B + drafts at full depth))), proof against float noise just above an integer."""
    return max(batch, math.ceil(rho * (batch + full_drafts) - 1e-9))


def select(
    confidence: Array,
    available: Array,
    full_drafts: int,
    grid: Iterable[float],
    cost_ms: Callable[[int, int], float],
) -> Choice:
    """Keep the grid's K that maximises expected tokens per millisecond; ties go to the smaller K.

    confidence: [B, D]. available: [B]. full_drafts: drafts of the batch at full depth, B x D where all want D.
    cost_ms: (B, K) -> time of a step with K rows.
    """
    batch = len(available)
    ranking = rank(survival(confidence), available)
    gained = np.concatenate([[0.0], np.cumsum(ranking.score)])
    best: Choice | None = None
    best_rate = -math.inf
    for rho in sorted(grid):
        drafts = min(grid_rows(rho, batch, full_drafts) - batch, len(ranking.score))
        expected = batch + float(gained[drafts])
        predicted = cost_ms(batch, batch + drafts)
        if expected / predicted > best_rate:
            best_rate = expected / predicted
            kept = np.bincount(ranking.sequence[:drafts], minlength=batch)
            best = Choice(kept, batch + drafts, rho, expected, predicted)
    if best is None:
        raise ValueError("the grid of rho is empty")
    return best
