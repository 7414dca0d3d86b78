"""The table interpolates, is monotone, and is reused only where nothing changed."""

import dataclasses
import time

import numpy as np
import pytest

from python_backend.budget import cost_table
from python_backend.budget.cost_table import CostTable, monotone
from python_backend.budget.policies import build_policy
from python_backend.coordinator.profile import profile
from python_backend.settings import BudgetSettings
from tests.support.host import settings_for, start
from tests.support.toy import ToyDrafter, ToyTarget

TABLE = CostTable(
    depth=4,
    context_length=16,
    batch_sizes=(1, 2, 8),
    fractions=(0.0, 0.5, 1.0),
    verify=((10, 12, 20), (14, 18, 26), (40, 60, 100)),
    draft={"drafter_toy": (1.0, 1.5, 4.0)},
)


@pytest.mark.parametrize(
    ("batch", "rows", "expected"),
    [
        (1, 1, 10),
        (1, 5, 20),
        (1, 4, 16),
        (2, 6, 18),
        (5, 25, (26 + 100) / 2),
        (8, 40, 100),
        (16, 80, 200),
        (1, 7, 28),  # beyond the last fraction the last slope goes on: 8 ms per half depth
    ],
)
def test_verify_time_is_interpolated(batch, rows, expected):
    assert TABLE.verify_ms(batch, rows) == pytest.approx(expected)


def test_draft_time_is_interpolated():
    assert TABLE.draft_ms("drafter_toy", 0, 4) == 0
    assert TABLE.draft_ms("drafter_toy", 5, 4) == pytest.approx((1.5 + 4.0) / 2)


def test_more_rows_are_never_cheaper():
    assert monotone([3.0, 2.0, 5.0, 4.0]) == (3.0, 3.0, 5.0, 5.0)


def test_a_profile_goes_through_the_real_calls_and_leaves_no_slot_behind():
    target, drafter = ToyTarget(slots=4), ToyDrafter(slots=4)
    seen = []
    table = profile(target, {"drafter_toy": drafter}, 4, 3, 8, 1, lambda done, total: seen.append((done, total)))
    assert table.batch_sizes == (1, 2, 4)
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert (np.diff(np.array(table.verify), axis=1) >= 0).all()
    assert not target.stored.any()
    assert all(not tokens for tokens in drafter.tokens)
    assert max(len(step.slot) for step in target.steps) == 4


def test_a_saved_table_comes_back_and_another_machine_gets_another_file(tmp_path):
    target = ToyTarget().describe()
    mark = cost_table.fingerprint(target, {}, depth=4)
    other = cost_table.fingerprint(dataclasses.replace(target, dtype="bfloat16"), {}, depth=4)
    path = cost_table.table_path(tmp_path, mark)
    cost_table.save(TABLE, mark, path)
    assert cost_table.load(path) == TABLE
    assert cost_table.table_path(tmp_path, other) != path
    path.write_text("{")
    assert cost_table.load(path) is None


@pytest.mark.parametrize(
    "changed", [{"hardware": "NVIDIA H20, 97871 MiB"}, {"build": "rank0.engine 2"}, {"engine": "t"}]
)
@pytest.mark.parametrize("whose", ["target", "drafter"])
def test_another_gpu_or_a_new_build_gets_another_table(tmp_path, whose, changed):
    target, drafter = ToyTarget().describe(), ToyDrafter().describe()
    before = dataclasses.replace(target, hardware="NVIDIA H200, 143771 MiB", build="rank0.engine 1")
    other = dataclasses.replace(drafter, hardware="NVIDIA H200, 143771 MiB", build="rank0.engine 1")

    def path(target, drafter):
        return cost_table.table_path(tmp_path, cost_table.fingerprint(target, {"d": drafter}, depth=4))

    after = dataclasses.replace(before if whose == "target" else other, **changed)
    assert path(before, other) != path(*((after, other) if whose == "target" else (before, after)))


@pytest.mark.parametrize("change", [{"threads": 1}, {"compiled_copies": 2}])
def test_settings_that_change_what_a_step_costs_get_another_table(tmp_path, change):
    """They are in no description of an engine."""
    marks = []
    for own in ({}, change):
        settings = settings_for(["drafter_toy"], cache_dir=tmp_path, budget={"policy": "dcut"})
        settings = settings.model_copy(update={"target": settings.target.model_copy(update=own)})
        start(settings, ToyTarget(), {"drafter_toy": ToyDrafter()}).shutdown()
        marks.append({file.name for file in (tmp_path / "cost_tables").iterdir()})
    assert len(marks[1] - marks[0]) == 1


def test_dcut_without_a_table_is_refused():
    with pytest.raises(ValueError, match="needs a cost table"):
        build_policy("dcut", BudgetSettings(), None)


def test_a_call_that_was_held_up_once_does_not_count():
    target = ToyTarget(slots=2)
    step, rows = target.step, []

    def stalls(message):
        rows.append(int(message.row_count.sum()))
        if rows.count(2) == 1 and rows[-1] == 2:
            time.sleep(0.4)
        return step(message)

    target.step = stalls
    table = profile(target, {}, 2, 4, 1, 3, lambda *_: None)
    assert max(max(curve) for curve in table.verify) < 200
