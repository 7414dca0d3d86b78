"""Who runs in the next step: admission, slots and prompt chunks. Pure state, no engines."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from python_backend.coordinator.request import RequestError
from python_backend.coordinator.sequence import NO_SLOT, Sequence


class Chunk(NamedTuple):
    """Rows of one prompt in a step."""

    sequence: Sequence
    rows: int  # prompt rows of this step


class Batch(NamedTuple):
    """Who runs in a step; false where nobody does."""

    decoding: list[Sequence]
    chunks: list[Chunk]

    def __bool__(self) -> bool:
        return bool(self.decoding or self.chunks)


class Scheduler:
    """Continuous batching: first come first served into slots; all decoding sequences run in every step, with at
    most `prefill_rows` prompt rows beside them, oldest first."""

    def __init__(self, slots: int, max_queue: int, prefill_rows: int) -> None:
        self._max_queue, self._prefill_rows = max_queue, prefill_rows
        self._free = list(range(slots))  # a heap: low slots first keep the used ones together
        self._waiting: deque[Sequence] = deque()
        self._lock = threading.Lock()
        self.running: list[Sequence] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises RequestError (UNAVAILABLE) where the queue is full."""
        with self._lock:
            waiting = len(self._waiting) - len(self._free)  # those beyond the free slots
            if waiting >= self._max_queue:
                raise RequestError(
                    f"queue is full: {self._max_queue} requests are waiting for one of {self._slots} slots",
                    "UNAVAILABLE",
                )
            self._waiting.append(sequence)

    @property
    def _slots(self) -> int:
        return len(self._free) + len(self.running)

    def admit(self) -> None:
        """Give free slots to those who wait."""
        with self._lock:
            while self._free and self._waiting:
                sequence = self._waiting.popleft()
                sequence.slot = heapq.heappop(self._free)
                sequence.scheduled = time.monotonic()
                self.running.append(sequence)

    def schedule(self) -> Batch:
        """Everyone who decodes, and the prompt rows as they are divided now."""
        decoding = [s for s in self.running if not s.prefilling]
        chunks = []
        budget = self._prefill_rows
        for s in self.running:
            if s.prefilling and budget:
                rows = min(budget, s.prompt_length - s.cached)
                chunks.append(Chunk(s, rows))
                budget -= rows
        return Batch(decoding, chunks)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its slot."""
        with self._lock:
            if sequence.slot == NO_SLOT:
                self._waiting.remove(sequence)
                return
            self.running.remove(sequence)
            heapq.heappush(self._free, sequence.slot)
            sequence.slot = NO_SLOT

    def remove_waiting(self, condition: Callable[[Sequence], bool]) -> list[Sequence]:
        """Take out the waiting sequences for which the condition holds."""
        with self._lock:
            gone = [s for s in self._waiting if condition(s)]
            for s in gone:
                self._waiting.remove(s)
        return gone

    def clear(self) -> None:
        """Take everybody out and free the slots."""
        self.remove_waiting(lambda _: True)
        for sequence in list(self.running):
            self.finish(sequence)

    def find(self, request_id: str) -> list[Sequence]:
        with self._lock:
            return [s for s in (*self._waiting, *self.running) if s.request_id == request_id]
