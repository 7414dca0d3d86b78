"""Arithmetic of packed rows: which sequence a row belongs to, and where in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from python_backend.protocol import Array, row_starts

Rows = npt.NDArray[np.int64]


def row_owners(counts: Array) -> tuple[Rows, Rows]:
    """[R] the sequence that each packed row belongs to, and [R] the row's number within it. counts: [B]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - row_starts(counts)[owner]
