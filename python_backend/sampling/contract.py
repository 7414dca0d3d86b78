"""The values that sampling columns may hold; checked by every engine before anything changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from python_backend.protocol import Array, DrafterStep, ProtocolError, SamplingColumns
from python_backend.rows import row_owners
from python_backend.sampling.corners import LARGEST

MOST = 2**31 - 1  # of a count


class Range(NamedTuple):
    """Both ends belong to it."""

    low: float
    high: float


RANGES = {
    "temperature": Range(0, LARGEST),
    "top_k": Range(0, MOST),
    "top_p": Range(0, 1),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(float(np.finfo(np.float32).tiny), LARGEST),  # some processors take less for 0
    "presence_penalty": Range(-LARGEST, LARGEST),
    "frequency_penalty": Range(-LARGEST, LARGEST),
    "prompt_length": Range(0, MOST),
    "min_tokens": Range(0, MOST),
    "end_id_count": Range(0, MOST),
    "bad_word_count": Range(0, MOST),
}


def check_sampling(step: SamplingColumns | DrafterStep, vocabulary_size: int) -> None:
    """Raise ProtocolError naming tensor, sequence, value and limit where a column holds what sampling does not take."""
    for name, _, _, default in step.columns():
        if name in RANGES:
            values = getattr(step, name)
            if default is None or values is not default(len(values)):
                _check_range(name, values, RANGES[name], np.arange(len(values)))
    if isinstance(step, SamplingColumns):
        _check_lists(step, vocabulary_size)


def _check_lists(step: SamplingColumns, vocabulary_size: int) -> None:
    """End ids and bad words: as many as are counted, and tokens of the vocabulary."""
    tokens = Range(0, vocabulary_size - 1)
    _check_count("end_ids", step.end_ids, "end_id_count", step.end_id_count)
    if len(step.end_ids):
        _check_range("end_ids", step.end_ids, tokens, row_owners(step.end_id_count)[0])
    _check_count("bad_word_length", step.bad_word_length, "bad_word_count", step.bad_word_count)
    if len(step.bad_word_length):
        owner = row_owners(step.bad_word_count)[0]
        _check_range("bad_word_length", step.bad_word_length, Range(1, MOST), owner)
        _check_count("bad_word_ids", step.bad_word_ids, "bad_word_length", step.bad_word_length)
        _check_range("bad_word_ids", step.bad_word_ids, tokens, owner[row_owners(step.bad_word_length)[0]])


def _check_range(name: str, values: Array, limit: Range, sequence: Array) -> None:
    """sequence: that each value is of."""
    fine = (values >= limit.low) & (values <= limit.high)  # NaN is not
    if not fine.all():
        i = int(fine.argmin())
        raise ProtocolError(
            f"tensor '{name}' is {values[i]} for sequence {sequence[i]}, limit {limit.low:.9g} to {limit.high:.9g}"
        )


def _check_count(name: str, values: Array, counted_by: str, counts: Array) -> None:
    if len(values) != (expected := int(counts.sum())):
        raise ProtocolError(
            f"tensor '{name}' has {len(values)} entries, expected {expected}: the sum of '{counted_by}'"
        )
