"""Compiled copies of one graph, each left at the shapes of its last pass.

A pass whose shapes are those of the pass before skips the plugin's shape inference and preparation, which take five
milliseconds of the embedded model's 25 (docs/performance.md). Speculative decoding changes the number of rows nearly
every step, but returns to the same few numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

Request = Any  # openvino.InferRequest


class Requests:
    """Hands out one of several requests that answer alike."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._last_at: OrderedDict[Hashable, Request] = OrderedDict((object(), r) for r in requests)

    def at(self, shapes: Hashable) -> Request:
        """The one whose last pass had these shapes, else the one that was used longest ago."""
        if shapes not in self._last_at:
            _, request = self._last_at.popitem(last=False)
            self._last_at[shapes] = request
        self._last_at.move_to_end(shapes)
        return self._last_at[shapes]
