"""Packed rows."""

from __future__ import annotations

import numpy as np

from python_backend.rows import row_owners


def test_rows_know_their_sequence_and_their_place_in_it() -> None:
    owner, offset = row_owners(np.array([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert offset.tolist() == [0, 1, 0, 1, 2]
