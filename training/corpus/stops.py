"""When an answer ends: an end token, its cap, or a loop."""

from __future__ import annotations

from collections import Counter
from typing import Literal

Stop = Literal["end", "cap", "loop"]
STOPS: tuple[Stop, ...] = ("end", "cap", "loop")

LOOP_NGRAM = 12
LOOP_REPEATS = 3


class StopRule:
    """Follows one answer token by token."""

    def __init__(self, end_ids: tuple[int, ...], cap: int) -> None:
        self.end_ids, self.cap = end_ids, cap
        self.recent: tuple[int, ...] = ()
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.length = 0

    def add(self, token: int) -> Stop | None:
        """Why the answer ends with this token, if it does: a loop is the same 12-gram for the third time."""
        self.length += 1
        if token in self.end_ids:
            return "end"
        self.recent = (*self.recent, token)[-LOOP_NGRAM:]
        if len(self.recent) == LOOP_NGRAM:
            self.seen[self.recent] += 1
            if self.seen[self.recent] >= LOOP_REPEATS:
                return "loop"
        return "cap" if self.length >= self.cap else None
