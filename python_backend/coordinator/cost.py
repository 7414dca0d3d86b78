"""What a pass cost, against plain decoding."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Of one pass, the same for each of its decoding sequences; zeros where nothing can be said."""

    plain_ms: float = 0.0  # predicted, of a pass without drafts for the same sequences
    spent_ms: float = 0.0  # measured: drafting, selecting, verifying


NOTHING = Cost()
