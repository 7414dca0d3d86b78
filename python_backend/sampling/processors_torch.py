"""`processors` on a device: the same rules, in the same order, for all rows of a pass at once.

Each takes and changes rows of logits in place, [M, V] float32; a forbidden token becomes -inf. See `corners` for what
they do with infinite and huge values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from python_backend.sampling.corners import FAR, LARGEST

FORBIDDEN = float("-inf")
NUCLEUS = 1024  # so many of the most probable tokens almost always hold the mass that top-p asks for


def mend(rows: Tensor, top: Tensor) -> None:
    """Let the largest logits be finite. top: [M, 1], where they are. Rows with NaN become some numbers."""
    rows.nan_to_num_(0.0, LARGEST, FORBIDDEN)
    largest = rows.gather(1, top)
    rows.scatter_(1, top, largest.masked_fill(largest == FORBIDDEN, 0))


def keep_one(rows: Tensor, top: Tensor) -> None:
    """Allow `top` [M, 1] where nothing else is."""
    nothing = rows.amax(dim=1, keepdim=True) == FORBIDDEN
    rows.scatter_(1, top, rows.gather(1, top).masked_fill(nothing, 0))


def forbid(rows: Tensor, row: Tensor, token: Tensor, where: Tensor) -> None:
    """Forbid token[k] in row[k] where where[k]; pairs may repeat."""
    change = torch.zeros_like(where, dtype=rows.dtype).masked_fill_(where, FORBIDDEN)
    rows.index_put_((row, token), change, accumulate=True)


def penalise(
    rows: Tensor, history: Tensor, seen: Tensor, output: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> None:
    """history: [M, P] tokens, of which `seen` [M, P] precede the row and `output` [M, P] are of the output.

    repetition, presence, frequency: [M, 1]; see `processors.penalise`.
    """
    vocabulary = rows.shape[1]
    counts = _counts(history, seen, vocabulary)
    penalised = torch.where(rows > 0, rows / repetition, rows * repetition).clamp_(-LARGEST, LARGEST)
    rows.copy_(torch.where((counts > 0) & (rows > FORBIDDEN), penalised, rows))
    counts = _counts(history, output, vocabulary)
    penalised = (rows - (presence + frequency * counts)).clamp_(-LARGEST, LARGEST)
    rows.copy_(torch.where((counts > 0) & (rows > FORBIDDEN), penalised, rows))


def ban_words(rows: Tensor, row: Tensor, before: Tensor, words: Tensor, length: Tensor) -> None:
    """Forbid the last token of each banned word whose other tokens have just been emitted.

    One pair [K] is a word and a row that it may not end in: row [K]; words [K, W] right-aligned, of these lengths [K];
    before [K, W - 1] the tokens before the row's own, right-aligned too and -1 before the sequence's first.
    """
    width = words.shape[1]
    head = torch.arange(width - 1, device=rows.device) >= (width - length)[:, None]
    emitted = ((before == words[:, :-1]) | ~head).all(dim=1)
    forbid(rows, row, words[:, -1], emitted)


def cool(rows: Tensor, temperature: Tensor) -> None:
    """temperature: [M, 1] float32, 1 where there is none."""
    peak = rows.amax(dim=1, keepdim=True)
    rows -= peak.masked_fill(peak.abs() <= FAR * temperature, 0)
    rows /= temperature


def keep_min_p(rows: Tensor, log_min_p: Tensor) -> None:
    """log_min_p: [M, 1] float32, -inf where min-p is off."""
    rows.masked_fill_(rows < rows.amax(dim=1, keepdim=True) + log_min_p, FORBIDDEN)


def keep_top_k(rows: Tensor, top_k: Tensor, most: int) -> None:
    """top_k: [M, 1] int64, 1 to `most`."""
    border = rows.topk(most, dim=1).values.gather(1, top_k - 1)
    rows.masked_fill_(rows < border, FORBIDDEN)


def keep_top_p(rows: Tensor, top_p: Tensor) -> None:
    """top_p: [M, 1] float64, below 1."""
    weight = (rows - rows.amax(dim=1, keepdim=True)).exp()
    needed = top_p * weight.sum(dim=1, keepdim=True, dtype=torch.float64)
    count = min(NUCLEUS, weight.shape[1])
    while True:
        descending = weight.topk(count, dim=1).values
        mass = descending.double().cumsum(dim=1)
        if count == weight.shape[1] or bool((mass[:, -1:] >= needed).all()):
            break
        count = weight.shape[1]
    last = torch.searchsorted(mass, needed).clamp(max=count - 1)
    rows.masked_fill_(weight < descending.gather(1, last), FORBIDDEN)


def _counts(history: Tensor, counted: Tensor, vocabulary: int) -> Tensor:
    """[M, V] float32, how often each token occurs among those counted."""
    counts = torch.zeros(len(history), vocabulary, dtype=torch.float32, device=history.device)
    return counts.scatter_add_(1, history, counted.float())
