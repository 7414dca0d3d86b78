"""How the packed rows of a step become the inputs of one or more passes of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.engines.blocks import BlockIndices
from python_backend.engines.openvino_graph import ANSWER_ROWS, ATTENTION_ROWS, LOGIT_ROWS, POSITIONS, TOKEN_IDS
from python_backend.protocol import Array, TargetStep, row_starts

Rows = npt.NDArray[np.int64]


class Limits(NamedTuple):
    """The shapes of a pass. Within them, found by trial, a row's results do not depend on the others' shapes.

    The kernels differ outside: attention for a sequence with one row, matrix products for one row and for many.
    """

    fewest: int  # rows of a sequence in attention, and rows in all
    most: int  # rows in all


FREE = Limits(fewest=1, most=1 << 30)
INVARIANT = Limits(fewest=2, most=64)


@dataclass(frozen=True, eq=False)
class Piece:
    """What one pass takes of a step: rows first:last of its packed rows, which belong to these sequences."""

    slot: Rows  # [b]
    past: Rows
    count: Rows
    first: int
    last: int


def cut(step: TargetStep, most: int) -> Iterator[Piece]:
    """Pieces of at most `most` rows, in order; a longer sequence continues in the next piece."""
    slot, past, count = (a.astype(np.int64) for a in (step.slot, step.past_length, step.row_count))
    starts = row_starts(count)
    for first in range(0, int(starts[-1]), most):
        last = min(first + most, int(starts[-1]))
        begin, end = np.maximum(starts[:-1], first), np.minimum(starts[1:], last)
        inside = begin < end
        done = begin - starts[:-1]
        yield Piece(slot[inside], (past + done)[inside], (end - begin)[inside], first, last)


def lengths(piece: Piece, limits: Limits) -> Rows:
    """[b] rows that each sequence has in the cache after the piece, repetitions included."""
    return piece.past + np.maximum(piece.count, limits.fewest)


def lay_out(
    piece: Piece, blocks: BlockIndices, token_ids: Array, wanted: Rows, limits: Limits
) -> dict[str, npt.NDArray[Any]]:
    """The graph's inputs for a piece, caches excepted.

    blocks: of each sequence, for its `lengths`. token_ids: [rows of the piece]. wanted: those that need logits. Where
    there are fewer than the limits ask for, the last row is repeated: a repetition of a sequence's last row comes after
    it and is seen by none.
    """
    padded = np.maximum(piece.count, limits.fewest)
    starts, begins = row_starts(piece.count), row_starts(padded)
    owner = np.repeat(np.arange(len(padded)), padded)
    offset = np.arange(begins[-1]) - begins[owner]
    inputs = {
        TOKEN_IDS: repeat_last(token_ids.astype(np.int64), limits.fewest),
        POSITIONS: piece.past[owner] + offset,
        LOGIT_ROWS: repeat_last(wanted, limits.fewest),
        "past_lens": piece.past.astype(np.int32),
        "subsequence_begins": begins.astype(np.int32),
        "block_indices": blocks.indices,
        "block_indices_begins": blocks.begins,
        "max_context_len": np.array(lengths(piece, limits).max(), dtype=np.int32),
    }
    if limits.fewest > 1:
        inputs[ATTENTION_ROWS] = starts[owner] + np.minimum(offset, piece.count[owner] - 1)
        inputs[ANSWER_ROWS] = repeat_last(np.flatnonzero(offset < piece.count[owner]), limits.fewest)
    return inputs


def repeat_last(values: Rows, fewest: int) -> Rows:
    """At least `fewest` values, where there are any."""
    missing = fewest - len(values)
    return np.append(values, np.repeat(values[-1:], missing)) if missing > 0 else values
