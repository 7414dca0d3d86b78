"""What a step costs now: the table of start-up, corrected by the steps that are measured while serving.

A table is profiled in one quiet or busy moment, at one context length. Serving moves on: other programs run, contexts
grow, other parts of a step take time. So each measured step moves the nearest points of the table towards it. A step
moves them little and the sum of all moves is bounded, because one step may have been held up.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from python_backend.budget.cost_table import CostTable, monotone

RATE = 0.1  # share of a step's error that its own points take over
COMMON_RATE = 0.05  # and all points together: a machine that is slower is slower everywhere
LARGEST_ERROR = math.log(1.3)  # of one step; what is further off was held up
LARGEST_CORRECTION = math.log(3.0)  # of a point, either way
PACE_RATE = 0.25  # weight of the last call in what a drafter takes of the time that the table says
LARGEST_PACE = 2.0  # one call that was held up is no rule
OTHER_RATE = 0.05  # weight of the last step in what a step takes outside its calls


class StepCosts:
    """Times in ms. B sequences, K rows, anchors included; prompt rows come on top."""

    def __init__(self, table: CostTable, learns: bool = True) -> None:
        """learns: false = the table stands as it was profiled, and nothing but its calls counts."""
        self.table, self._base, self._learns = table, table, learns
        self._common = 0.0
        self._own: npt.NDArray[np.float64] = np.zeros((len(table.batch_sizes), len(table.fractions)))
        self._pace = dict.fromkeys(table.draft, 1.0)
        self._prompt_row_ms = table.prompt_row_ms
        self._other_ms = 0.0
        self.error = 0.0  # |predicted - measured| / measured, a running mean

    @property
    def depth(self) -> int:
        return self.table.depth

    def learned(self) -> CostTable:
        """The table as it stands, to start from the next time."""
        return replace(self.table, prompt_row_ms=self._prompt_row_ms)

    def draft_ms(self, drafter: str, batch: int, depth: int) -> float:
        """A draft call for so many sequences."""
        return self._pace[drafter] * self.table.draft_ms(drafter, batch, depth)

    def verify_ms(self, batch: int, rows: int, prompt_rows: int = 0) -> float:
        """A verify call. Without decoding sequences, of prompt rows alone."""
        decoding = self.table.verify_ms(batch, rows) if batch else 0.0
        return decoding + prompt_rows * self._prompt_row_ms

    def step_ms(self, batch: int, rows: int, prompt_rows: int = 0) -> float:
        """A whole step but for its draft calls."""
        return self.verify_ms(batch, rows, prompt_rows) + self._other_ms

    def saw_draft(self, drafter: str, batch: int, depth: int, ms: float) -> None:
        """Calls are often shorter than those that were profiled: a chain ends early, contexts differ."""
        if (expected := self.table.draft_ms(drafter, batch, depth)) > 0:
            measured = min(ms / expected, LARGEST_PACE * self._pace[drafter])
            self._pace[drafter] += PACE_RATE * (measured - self._pace[drafter])

    def saw_verify(self, batch: int, rows: int, prompt_rows: int, ms: float) -> None:
        """Move the points around (B, K) towards what the call took, or the price of a prompt row, if it had some."""
        if not self._learns or ms <= 0:
            return
        if prompt_rows:
            share = max(ms - self.verify_ms(batch, rows), 0.0) / prompt_rows
            limit = 2 * self._prompt_row_ms if self._prompt_row_ms else share
            self._prompt_row_ms += RATE * (min(share, limit) - self._prompt_row_ms)
            return
        error = math.log(ms / self.table.verify_ms(batch, rows))
        error = min(max(error, -LARGEST_ERROR), LARGEST_ERROR)
        weight = self._weights(batch, rows)
        self._common += COMMON_RATE * error
        self._own += RATE * error * weight / np.square(weight).sum()
        total = np.clip(self._common + self._own, -LARGEST_CORRECTION, LARGEST_CORRECTION)
        self._common = min(max(self._common, -LARGEST_CORRECTION), LARGEST_CORRECTION)
        self._own = total - self._common
        curves = np.array(self._base.verify) * np.exp(total)
        self.table = replace(self.table, verify=tuple(monotone(curve) for curve in curves.tolist()))

    def saw_step(self, predicted_ms: float, ms: float, calls_ms: float) -> None:
        """A whole step: what was predicted of it, what it took, and how much of that its calls."""
        if not math.isnan(predicted_ms):
            self.error += OTHER_RATE * (min(abs(predicted_ms - ms) / ms, 1.0) - self.error)
        if self._learns:
            other = min(max(ms - calls_ms, 0.0), 2 * self._other_ms + 1.0)
            self._other_ms += OTHER_RATE * (other - self._other_ms)

    def _weights(self, batch: int, rows: int) -> npt.NDArray[np.float64]:
        """[sizes, fractions] of the points that `verify_ms` mixes; they add up to 1."""
        sizes, fractions = self.table.batch_sizes, self.table.fractions
        fraction = (rows - batch) / max(1, batch * self.depth)
        return np.outer(_mix(sizes, batch), _mix(fractions, fraction))


def _mix(points: tuple[float, ...] | tuple[int, ...], at: float) -> npt.NDArray[np.float64]:
    """[points] weights of linear interpolation, constant beyond the ends."""
    weights = np.zeros(len(points))
    upper = int(np.searchsorted(points, at))
    if upper == 0 or upper == len(points):
        weights[min(upper, len(points) - 1)] = 1.0
        return weights
    share = (at - points[upper - 1]) / (points[upper] - points[upper - 1])
    weights[upper - 1], weights[upper] = 1 - share, share
    return weights
