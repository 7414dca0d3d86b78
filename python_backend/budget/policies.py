"""Budget policies behind one interface: how many drafts of each sequence are verified."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from python_backend.budget import dcut, draft_payoff
from python_backend.budget.costs import StepCosts
from python_backend.budget.dcut import Choice
from python_backend.budget.draft_payoff import Prices
from python_backend.budget.drafts import Drafts
from python_backend.settings import BudgetSettings


class Policy(Protocol):
    """`drafts` false: the step makes no draft call at all."""

    name: str
    drafts: bool

    def prices(self, batch: int) -> Prices:
        """On which the drafters are asked for B decoding sequences."""
        ...

    def select(self, drafts: Drafts, prompt_rows: int = 0) -> Choice:
        """How many drafts of each sequence are verified. prompt_rows: rows of prefill in the same pass."""
        ...


class Off:
    """Plain decoding."""

    name = "off"
    drafts = False

    def prices(self, batch: int) -> Prices:
        return Prices()

    def select(self, drafts: Drafts, prompt_rows: int = 0) -> Choice:
        batch = len(drafts.available)
        return Choice(np.zeros(batch, dtype=np.int64), batch, 0.0, float(batch), math.nan)


class Fixed:
    """Every sequence at its full depth."""

    name = "fixed"
    drafts = True

    def prices(self, batch: int) -> Prices:
        return Prices()

    def select(self, drafts: Drafts, prompt_rows: int = 0) -> Choice:
        batch = len(drafts.available)
        scores = dcut.survival(drafts.confidence)
        wanted = np.arange(scores.shape[1]) < drafts.available[:, None]
        kept = drafts.available.copy()
        return Choice(kept, batch + int(kept.sum()), 1.0, batch + float(scores[wanted].sum()), math.nan)


class DCut:
    """The paper's policy: K_rho over the grid. To the letter where drafters have no pauses and costs are not corrected
    online."""

    name = "dcut"
    drafts = True

    def __init__(self, costs: StepCosts, settings: BudgetSettings) -> None:
        self._costs, self._rho, self._max_skipped_steps = costs, settings.rho, settings.max_skipped_steps

    def prices(self, batch: int) -> Prices:
        if self._max_skipped_steps == 1:
            return Prices()
        return draft_payoff.prices(self._costs, batch, self._max_skipped_steps)

    def select(self, drafts: Drafts, prompt_rows: int = 0) -> Choice:
        return dcut.select(
            drafts.confidence,
            drafts.available,
            int(drafts.depth.sum()),
            self._rho,
            lambda batch, rows: drafts.draft_ms + self._costs.step_ms(batch, rows, prompt_rows),
        )


POLICIES: dict[str, Callable[[BudgetSettings, StepCosts | None], Policy]] = {
    "off": lambda settings, costs: Off(),
    "fixed": lambda settings, costs: Fixed(),
    "dcut": lambda settings, costs: DCut(_needed(costs, "dcut"), settings),
}


def build_policy(name: str, settings: BudgetSettings, costs: StepCosts | None) -> Policy:
    """Raises ValueError where the policy needs a cost table and none was measured."""
    return POLICIES[name](settings, costs)


def _needed(costs: StepCosts | None, policy: str) -> StepCosts:
    if costs is None:
        raise ValueError(f"policy '{policy}' needs a cost table, and none was profiled")
    return costs
