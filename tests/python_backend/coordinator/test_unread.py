"""A target is told whose features nobody will read, and only those."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.host import ask, settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget


class HostedToy(ToyDrafter):
    """Finds its features elsewhere; none come by wire."""

    def describe(self):
        return dataclasses.replace(super().describe(), hosted=True)


@pytest.mark.parametrize(
    ("target_size", "drafter", "drafts", "expected"),
    [
        (3, ToyDrafter(feature_size=3), 4, False),
        (3, ToyDrafter(feature_size=3), 0, True),
        (3, ToyDrafter(feature_size=0), 4, True),
        (3, HostedToy(feature_size=0), 4, False),
        (0, ToyDrafter(feature_size=0), 4, False),
    ],
    ids=["a drafter reads them", "plain decoding", "a drafter without", "a hosted drafter", "nothing is captured"],
)
def test_features_that_nobody_reads_are_named(
    tmp_path: Path, target_size: int, drafter: ToyDrafter, drafts: int, expected: bool
) -> None:
    target = ToyTarget(feature_size=target_size)
    service = start(
        settings_for(["drafter_a", "drafter_b"], cache_dir=tmp_path),
        target,
        {"drafter_a": drafter, "drafter_b": drafter},
    )
    target.steps.clear()  # of the cost table
    ask(service, input_ids=[1, 2, 3], max_tokens=8, num_draft_tokens=drafts, workload="chat").wait()
    service.shutdown()
    assert target.steps
    for step in target.steps:
        assert np.array_equal(step.unread, step.slot) if expected else not len(step.unread)
