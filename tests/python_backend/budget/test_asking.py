"""Drafters are asked where that is expected to pay; one that lost is tried again, ever more rarely."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.budget.asking import FIRST, Worth, asked, terms, worth
from python_backend.budget.cost_table import CostTable
from python_backend.budget.costs import StepCosts

TABLE = CostTable(
    depth=4,
    context_length=8,
    batch_sizes=(1, 2),
    fractions=(0.0, 1.0),
    verify=((20.0, 40.0), (30.0, 70.0)),
    draft={"network": (10.0, 12.0)},
)


@given(
    gain=st.lists(st.floats(-2, 4), min_size=1, max_size=7),
    steps=st.lists(st.floats(0, 2), min_size=7, max_size=7),
)
def test_no_other_call_would_be_worth_more(gain, steps):
    costs = np.cumsum(steps).tolist()  # of a call for 1, 2, … sequences
    everyone = range(len(gain))
    profits = [
        sum(gain[i] for i in chosen) - costs[count - 1]
        for count in range(1, len(gain) + 1)
        for chosen in combinations(everyone, count)
    ]
    mine = asked(np.array(gain), lambda count: costs[count - 1])
    profit = float(np.array(gain)[mine].sum()) - (costs[mine.sum() - 1] if mine.any() else 0.0)
    assert math.isclose(profit, max(0.0, *profits), abs_tol=1e-9)


@given(confidence=st.lists(st.floats(0, 1), min_size=1, max_size=7), row=st.floats(0, 1))
def test_drafts_are_worth_what_the_best_prefix_of_them_brings(confidence, row):
    survival = np.cumprod(confidence)
    prefixes = [float(survival[:k].sum()) - k * row for k in range(len(survival) + 1)]
    assert math.isclose(worth(survival[None], row)[0], max(prefixes), abs_tol=1e-9)


@pytest.mark.parametrize(("batch", "ms", "row"), [(1, 1 / 20, 20 / 4 / 20), (2, 2 / 30, 40 / 8 * 2 / 30)])
def test_prices_are_what_plain_decoding_would_emit_in_the_time(batch, ms, row):
    got = terms(StepCosts(TABLE), batch, 16)
    assert (got.ms, got.row, got.longest_pause) == (pytest.approx(ms), pytest.approx(row), 16)


def test_pauses_grow_while_a_drafter_loses_and_end_when_it_wins():
    one, pauses = Worth(), []
    while one.pause < 16:
        one.record(0.0, 0.5, 16)
        pauses.append(one.pause)
    assert [p for p in pauses if p > 1] == [2, 4, 8, 16]
    one.record(0.0, 0.5, 16)
    assert one.pause == 16
    one.record(4 * FIRST, 0.5, 16)
    assert one.pause == 1


def test_those_who_paused_try_again_in_the_same_steps():
    long, short = Worth(pause=8), Worth(pause=2)
    tries = [step for step in range(33) if long.due(step)]
    assert tries == [0, 8, 16, 24, 32]
    assert all(short.due(step) for step in tries)
