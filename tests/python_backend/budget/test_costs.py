"""Predictions follow what steps really take, and no single step can mislead them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.budget.cost_table import CostTable
from python_backend.budget.costs import StepCosts

TABLE = CostTable(
    depth=7,
    context_length=16,
    batch_sizes=(1, 2, 4, 8, 16),
    fractions=(0.0, 0.125, 0.25, 0.5, 1.0),
    verify=tuple(tuple(10.0 + 2 * b + 3 * b * f * 7 for f in (0.0, 0.125, 0.25, 0.5, 1.0)) for b in (1, 2, 4, 8, 16)),
    draft={"network": (4.0, 5.0, 7.0, 11.0, 20.0)},
    prompt_row_ms=0.5,
)


def machine(batch, rows):
    """Another than the one that was profiled: cheap rows up to a step at 16, and dearer plain passes."""
    return (14.0 + 2.5 * batch + 0.5 * (rows - batch)) * (1.6 if rows > 16 else 1.0)


def serve(costs, steps, time=machine, spread=0.05, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(steps):
        batch = int(random.integers(1, 17))
        rows = batch + int(random.integers(0, 3)) * batch
        costs.saw_verify(batch, rows, 0, time(batch, rows) * random.lognormal(0, spread))


def errors(costs, time=machine):
    """Of every step that `serve` makes."""
    points = [(b, b + n * b) for b in range(1, 17) for n in range(3)]
    return [abs(costs.verify_ms(*point) / time(*point) - 1) for point in points]


def test_after_a_minute_of_steps_the_median_error_is_under_five_percent():
    costs = StepCosts(TABLE)
    before = float(np.median(errors(costs)))
    serve(costs, 1200)
    assert before > 0.15
    assert float(np.median(errors(costs))) < 0.05


def test_a_machine_that_is_slower_throughout_is_known_where_it_was_never_seen():
    costs = StepCosts(TABLE)
    for _ in range(600):
        costs.saw_verify(1, 1, 0, 1.4 * TABLE.verify_ms(1, 1))
    assert costs.verify_ms(16, 128) / TABLE.verify_ms(16, 128) > 1.1


def test_one_step_that_was_held_up_changes_little():
    costs = StepCosts(TABLE)
    costs.saw_verify(4, 8, 0, 5000.0)
    assert costs.verify_ms(4, 8) / TABLE.verify_ms(4, 8) < 1.04


def test_corrections_are_bounded():
    costs = StepCosts(TABLE)
    for _ in range(5000):
        costs.saw_verify(4, 8, 0, 1e6)
    assert costs.verify_ms(4, 8) <= 3.001 * TABLE.verify_ms(4, 8)
    for _ in range(9000):
        costs.saw_verify(4, 8, 0, 1e-3)
    assert costs.verify_ms(4, 8) >= TABLE.verify_ms(4, 8) / 3.001


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 140), st.floats(1e-3, 1e4)), min_size=1, max_size=40))
def test_more_rows_never_look_cheaper(steps):
    costs = StepCosts(TABLE)
    for batch, drafts, ms in steps:
        costs.saw_verify(batch, batch + drafts, 0, ms)
    for batch in (1, 3, 16, 20):
        times = [costs.verify_ms(batch, batch + n) for n in range(7 * batch + 1)]
        assert all(a <= b + 1e-9 for a, b in itertools.pairwise(times))
        assert all(math.isfinite(t) and t > 0 for t in times)


def test_prompt_rows_are_priced_and_learned():
    costs = StepCosts(TABLE)
    assert costs.verify_ms(4, 8, 100) == pytest.approx(TABLE.verify_ms(4, 8) + 50.0)
    for _ in range(200):
        costs.saw_verify(4, 8, 100, TABLE.verify_ms(4, 8) + 80.0)
    assert costs.verify_ms(4, 8, 100) == pytest.approx(TABLE.verify_ms(4, 8) + 80.0, rel=0.01)
    assert costs.verify_ms(0, 0, 10) == pytest.approx(8.0, rel=0.01)
    assert costs.learned().prompt_row_ms == pytest.approx(0.8, rel=0.01)


def test_time_outside_the_calls_belongs_to_a_step():
    costs = StepCosts(TABLE)
    for _ in range(300):
        costs.saw_step(math.nan, 24.0, 20.0)
    assert costs.step_ms(4, 8) - costs.verify_ms(4, 8) == pytest.approx(4.0, rel=0.01)


def test_the_error_of_predictions_is_a_running_mean():
    costs = StepCosts(TABLE)
    for _ in range(300):
        costs.saw_step(12.0, 10.0, 10.0)
    assert costs.error == pytest.approx(0.2, rel=0.01)


def test_a_table_that_does_not_learn_stays_as_it_was_profiled():
    costs = StepCosts(TABLE, learns=False)
    serve(costs, 100)
    costs.saw_step(10.0, 50.0, 1.0)
    assert costs.table is TABLE
    assert costs.step_ms(4, 8) == TABLE.verify_ms(4, 8)


def test_the_learned_table_is_where_the_next_start_begins():
    costs = StepCosts(TABLE)
    serve(costs, 1200)
    assert errors(StepCosts(costs.learned())) == errors(costs)
