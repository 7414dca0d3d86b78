"""Hundreds of bad requests at once hurt nobody; `make fuzz` sends thousands."""

from __future__ import annotations

import pytest

from tests.fuzz.campaign import Campaign

pytestmark = pytest.mark.server

CASES, SEED = 300, 2024


def test_bad_requests_at_scale_hurt_nobody(server):
    tally = Campaign(server).run(CASES, SEED)
    assert tally.findings == []
    assert tally.cases == CASES
    verdicts = {verdict for _, verdict in tally.cells}
    assert {"answered", "refused by name", "refused by Triton", "left"} <= verdicts
