"""Which sequences a drafter is asked for. Drafting is paid from the batch's time as verification is.

D-cut weighs the rows of the verify pass; this weighs the calls before it, in one currency: a millisecond costs the
tokens that plain decoding of the batch would emit in it. What a drafter's next drafts are worth to a sequence is
foretold by what its last ones were. One that lost is asked again after a pause, and longer pauses the more often it
loses; pauses are powers of two, counted from the same step, so that those who try again share a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.budget.costs import StepCosts
from python_backend.budget.dcut import Floats

FIRST = 1.0  # tokens that drafts are taken to be worth before there were any
RECENT = 0.25  # weight of the last drafts in what the next ones are taken to be worth
NEGLIGIBLE = 0.02  # tokens: a call that costs a sequence less is always made


class Terms(NamedTuple):
    """Of one step. With the defaults every drafter is asked for every sequence, and costs nothing."""

    ms: float = 0.0  # price of a millisecond, in tokens
    row: float = 0.0  # price of a further row in the verify pass, in tokens
    longest_pause: int = 1  # steps


@dataclass
class Worth:
    """Of one drafter to one sequence, in tokens a step."""

    value: float = FIRST
    pause: int = 0  # steps until it is tried again; 1: it paid when it was asked last, 0: it was never asked

    def due(self, step: int) -> bool:
        """Whether it is time to try, whatever that costs."""
        return self.pause != 1 and (self.pause == 0 or step % self.pause == 0)

    def record(self, value: float, cost: float, longest_pause: int) -> None:
        """It was asked: what its drafts were worth, and its share of the call's cost."""
        self.value += RECENT * (value - self.value)
        self.pause = 1 if self.value > cost else min(2 * max(self.pause, 1), longest_pause)


def terms(costs: StepCosts, batch: int, longest_pause: int) -> Terms:
    """For B decoding sequences, by what steps cost now."""
    batch = max(batch, 1)
    drafts, plain = batch * costs.depth, costs.step_ms(batch, batch)
    ms = batch / plain
    return Terms(ms, ms * (costs.step_ms(batch, batch + drafts) - plain) / drafts, longest_pause)


def worth(survival: Floats, row: float) -> Floats:
    """[N] tokens that drafts bring, less what the rows cost that are worth verifying. survival: [N, D], not rising."""
    gained: Floats = np.maximum(survival - row, 0.0).sum(axis=1)
    return gained


def asked(gain: Floats, cost: Callable[[int], float]) -> npt.NDArray[np.bool_]:
    """[N] whose drafts together are worth most beyond the cost of the call that drafts them: those that gain most.

    gain: [N] tokens. cost: number of sequences in the call -> tokens.
    """
    order = np.argsort(-gain, kind="stable")
    profit = np.cumsum(gain[order]) - [cost(n + 1) for n in range(len(gain))]
    count = int(profit.argmax()) + 1 if profit.max(initial=0.0) > 0 else 0
    chosen = np.zeros(len(gain), dtype=np.bool_)
    chosen[order[:count]] = True
    return chosen
