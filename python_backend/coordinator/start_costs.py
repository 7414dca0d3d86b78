"""The costs that a server starts with: of the saved table, where it is of these very engines, else of a fresh one."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NamedTuple

from python_backend.budget import cost_table
from python_backend.budget.costs import StepCosts
from python_backend.coordinator.profile import profile
from python_backend.engine import DrafterEngine, TargetEngine
from python_backend.protocol import Description
from python_backend.settings import Settings

log = logging.getLogger(__name__)


class StartCosts(NamedTuple):
    """Costs, and where they are kept."""

    costs: StepCosts
    path: Path
    mark: dict[str, object]  # what the table is of

    def save(self) -> None:
        """What was learned, for the next start."""
        cost_table.save(self.costs.learned(), self.mark, self.path)


def start_costs(
    settings: Settings,
    target: TargetEngine,
    drafters: dict[str, DrafterEngine],
    described: Description,
    drafters_described: dict[str, Description],
) -> StartCosts | None:
    """None where no policy could need them. described: the target's own description. Raises what the engines raise."""
    wanted, budget = settings.coordinator, settings.budget
    if not (budget.policy == "dcut" or wanted.allow_control) or wanted.depth == 0:
        return None
    context = min(budget.profile_context, wanted.max_length - wanted.depth - 1)
    mark = cost_table.fingerprint(
        described,
        drafters_described,
        slots=wanted.max_sequences,
        depth=wanted.depth,
        context=context,
        repeats=budget.profile_repeats,
        settings=settings.model_dump(mode="json", include={"target", "drafters"}),
    )
    path = cost_table.table_path(settings.cache_dir / "cost_tables", mark)
    if budget.profile_reuse and (saved := cost_table.load(path)):
        log.info("cost table reused: %s", path)
        return StartCosts(StepCosts(saved, budget.online_costs), path, mark)
    log.info("profiling the cost table: %d sequences, depth %d", wanted.max_sequences, wanted.depth)
    start = time.monotonic()
    table = profile(
        target, drafters, wanted.max_sequences, wanted.depth, context, budget.profile_repeats, _log_progress
    )
    cost_table.save(table, mark, path)
    log.info("cost table profiled in %.1f s: %s", time.monotonic() - start, path)
    return StartCosts(StepCosts(table, budget.online_costs), path, mark)


def _log_progress(done: int, total: int) -> None:
    log.info("profiling %d/%d", done, total)
