"""Logit processors of one row, in this order: mending, penalties, bans, temperature, min-p, top-k, top-p.

Each takes and changes one row of logits in place, [V] float32 without NaN; a forbidden token becomes -inf. What they do
with infinite and huge values is said in `corners`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.sampling.corners import FAR, LARGEST

Row = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

_LARGEST = np.float32(LARGEST)


def mend(row: Row, top: int) -> None:
    """Let the largest logit be finite. top: where it is."""
    if row[top] == np.inf:
        np.minimum(row, _LARGEST, out=row)
    elif row[top] == -np.inf:
        row[top] = 0


def keep_one(row: Row, top: int) -> None:
    """Allow `top` where nothing else is."""
    if row.max() == -np.inf:
        row[top] = 0


def penalise(
    row: Row, history: Tokens, prompt_length: int, repetition: float, presence: float, frequency: float
) -> None:
    """Repetition over prompt and output (Keskar et al., 2019: divide positive logits, multiply negative ones),
    presence and frequency over the output (subtract once, and once per occurrence)."""
    if repetition != 1.0:
        seen = np.unique(history)
        values = row[seen]
        row[seen] = _saturated(np.where(values > 0, values / repetition, values * repetition), values)
    if presence or frequency:
        seen, counts = np.unique(history[prompt_length:], return_counts=True)
        values = row[seen]
        row[seen] = _saturated(values - (presence + frequency * counts.astype(np.float32)), values)


def ban_words(row: Row, history: Tokens, words: list[Tokens]) -> None:
    """Forbid the last token of each banned word whose other tokens have just been emitted."""
    for word in words:
        head = word[:-1]
        if len(head) == 0 or (len(head) <= len(history) and np.array_equal(history[len(history) - len(head) :], head)):
            row[word[-1]] = -np.inf


def cool(row: Row, temperature: np.float32, peak: np.float32) -> None:
    """Divide by a temperature of at least `corners.GREEDY_BELOW`. peak: the largest logit."""
    if abs(float(peak)) > FAR * float(temperature):
        row -= peak
    row /= temperature


def keep_min_p(row: Row, min_p: float) -> None:
    """Forbid tokens less probable than min_p times the most probable one."""
    row[row < row.max() + np.float32(np.log(min_p))] = -np.inf


def keep_top_k(row: Row, top_k: int) -> None:
    """Forbid all but the k most probable tokens; ties at the border stay."""
    if top_k < len(row):
        row[row < np.partition(row, -top_k)[-top_k]] = -np.inf


def keep_top_p(row: Row, top_p: float) -> None:
    """Keep the smallest set of most probable tokens whose mass reaches top_p; ties at the border stay.

    Only tokens above a falling threshold are sorted: a full sort of the vocabulary costs more than the rest.
    """
    weight = np.exp(row - row.max(), dtype=np.float32)
    needed = top_p * float(weight.sum(dtype=np.float64))
    floor = np.float32(1e-3)
    while (candidates := weight[weight >= floor]).sum(dtype=np.float64) < needed and floor > 1e-30:
        floor *= np.float32(1e-2)
    descending = np.sort(candidates)[::-1]
    last = min(int(np.searchsorted(np.cumsum(descending, dtype=np.float64), needed)), len(descending) - 1)
    row[weight < descending[last]] = -np.inf


def _saturated(values: Row, before: Row) -> Row:
    """Finite where they were before."""
    values = np.minimum(np.maximum(values, -_LARGEST), _LARGEST)  # cheaper than np.clip for so few
    return np.where(before == -np.inf, before, values)
