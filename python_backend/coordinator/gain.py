"""Whether speculation pays: what was decoded, against the time that plain decoding would have taken for it.

The cost table says how much longer a pass takes than one without drafts; the measured pass says how long that is now.
So neither a busy machine nor a table of a quiet hour counts as a loss of speculation.
"""

from __future__ import annotations

import logging
import time

from python_backend.budget.costs import StepCosts
from python_backend.coordinator.cost import NOTHING, Cost
from python_backend.coordinator.metrics import Metrics
from python_backend.coordinator.report import StepReport

log = logging.getLogger(__name__)

WINDOW_MS = 60_000.0  # decoding time that the gain is about; older passes count less and less
WARN_EVERY_S = 600.0
LOSS = 0.97  # below this it costs more than a table can err


class Gain:
    """Over about the last minute of decoding; on the loop's thread."""

    def __init__(self, costs: StepCosts | None, metrics: Metrics) -> None:
        """costs: None where nothing is predicted."""
        self._costs, self._metrics = costs, metrics
        self._plain_ms = self._spent_ms = 0.0
        self._next_warning = time.monotonic()

    def cost(self, report: StepReport) -> Cost:
        """Of a pass that decoded only. Its report has the times and the rows."""
        if self._costs is None:
            return NOTHING
        spent = report.draft_ms + report.select_ms + report.verify_ms
        if not report.asked and report.rows == report.batch:
            return Cost(spent, spent)  # plain decoding itself
        usual = self._costs.verify_ms(report.batch, report.rows)
        if usual <= 0:
            return NOTHING
        return Cost(self._costs.verify_ms(report.batch, report.batch) * report.verify_ms / usual, spent)

    def add(self, cost: Cost, tokens: int, batch: int) -> None:
        """tokens: that the pass emitted, for so many sequences."""
        if not cost.spent_ms:
            return
        if self._spent_ms > WINDOW_MS:
            self._plain_ms, self._spent_ms = self._plain_ms / 2, self._spent_ms / 2
        self._plain_ms += cost.plain_ms * tokens / batch
        self._spent_ms += cost.spent_ms
        gain = self._plain_ms / self._spent_ms
        self._metrics.set("angelspec_speculation_gain", gain)
        if gain < LOSS and self._spent_ms > WINDOW_MS / 2 and time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + WARN_EVERY_S
            log.warning(
                "speculation does not pay: the last %.0f s of decoding would have taken %.0f s without drafts, by the "
                "cost table; budget.policy off, or num_draft_tokens 0 in a request, decodes plainly",
                self._spent_ms / 1e3,
                self._plain_ms / 1e3,
            )
