"""Whom a drafter is asked for, and how deep it drafts. Drafting is paid from the batch's time as verification is.

D-cut weighs the rows of the verify pass; this weighs the calls before it, in one currency: a millisecond costs the
tokens that plain decoding of the batch would emit in it. What a drafter's next drafts are worth to a sequence is
foretold by what its last ones were, position by position. One that lost is asked again after a pause, and longer pauses
the more often it loses; pauses are powers of two, counted from the same step, so that those who try again share a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.budget.costs import StepCosts
from python_backend.budget.dcut import Floats

FIRST_CHANCE = 0.7  # of a draft to be accepted after those before it, before there were any
TRY = 2  # drafts of one that is tried again
RECENT = 0.25  # weight of the last drafts in what the next ones are taken to be worth
NEGLIGIBLE = 0.02  # tokens: a call that costs a sequence less is always made


class Prices(NamedTuple):
    """Of one step. With the defaults every drafter is asked for every sequence, and costs nothing."""

    ms: float = 0.0  # price of a millisecond, in tokens
    row: float = 0.0  # price of a further row in the verify pass, in tokens
    max_skipped_steps: int = 1  # steps


@dataclass
class Worth:
    """Of one drafter to one sequence."""

    pause: int = 0  # steps until it is tried again; 1: it paid when it was asked last, 0: it was never asked
    chances: list[float] = field(default_factory=list)  # of each position, given that all before it were accepted

    def due(self, step: int) -> bool:
        """Whether it is time to try, whatever that costs."""
        return self.pause != 1 and (self.pause == 0 or step % self.pause == 0)

    def expected(self, depth: int) -> Floats:
        """[depth] survival of its next drafts."""
        later = [FIRST_CHANCE] * (depth - len(self.chances))
        survived: Floats = np.cumprod([*self.chances[:depth], *later])
        return survived

    def see(self, confidence: list[float]) -> None:
        """Its drafts came, with these confidences. No draft at all is one that has no chance."""
        for k, chance in enumerate(confidence or [0.0]):
            if k == len(self.chances):
                self.chances.append(FIRST_CHANCE)
            self.chances[k] += RECENT * (chance - self.chances[k])

    def rate(self, depth: int, row: float, cost: float, max_skipped_steps: int) -> None:
        """It was asked: whether such drafts are worth its share of the call's cost, in tokens."""
        if float(worth(self.expected(depth)[None], row)[0]) > cost:
            self.pause = 1
        else:
            self.lose(max_skipped_steps)

    def lose(self, max_skipped_steps: int) -> None:
        """It is not to be asked for a while."""
        self.pause = min(2 * max(self.pause, 1), max_skipped_steps)


def prices(costs: StepCosts, batch: int, max_skipped_steps: int) -> Prices:
    """For B decoding sequences, by what steps cost now."""
    batch = max(batch, 1)
    drafts, plain = batch * costs.depth, costs.step_ms(batch, batch)
    ms = batch / plain
    return Prices(ms, ms * (costs.step_ms(batch, batch + drafts) - plain) / drafts, max_skipped_steps)


def worth(survival: Floats, row: float) -> Floats:
    """[N] tokens that drafts bring, less what the rows cost that are worth verifying. survival: [N, D], not rising."""
    gained: Floats = np.maximum(survival - row, 0.0).sum(axis=1)
    return gained


class Call(NamedTuple):
    """What a drafter is asked."""

    members: npt.NDArray[np.bool_]  # [N]
    depth: int  # 0 = no call


def best_call(gain: Floats, cost: Callable[[int, int], float]) -> Call:
    """The members and the depth whose drafts are together worth most beyond the cost of the call that makes them.

    gain: [N, D] tokens that 1 to D drafts bring each sequence. cost: (sequences, depth) -> tokens. Of one depth those
    are asked who gain most; ties go to the smaller call.
    """
    best, nobody = 0.0, np.zeros(len(gain), dtype=np.bool_)
    call = Call(nobody, 0)
    for depth in range(1, gain.shape[1] + 1):
        order = np.argsort(-gain[:, depth - 1], kind="stable")
        profit = np.cumsum(gain[order, depth - 1]) - [cost(n + 1, depth) for n in range(len(gain))]
        count = int(profit.argmax()) + 1
        if profit[count - 1] > best:
            best, members = float(profit[count - 1]), nobody.copy()
            members[order[:count]] = True
            call = Call(members, depth)
    return call


def gains(survival: Floats, row: float, have: Floats) -> Floats:
    """[N, D] tokens that 1 to D drafts bring beyond what each sequence has. survival: [N, D]; have: [N] tokens."""
    gained: Floats = np.cumsum(np.maximum(survival - row, 0.0), axis=1) - have[:, None]
    return gained
