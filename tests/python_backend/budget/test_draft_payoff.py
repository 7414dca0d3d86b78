"""Drafters are asked where that is expected to pay; one that lost is tried again, ever more rarely."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.budget.cost_table import CostTable
from python_backend.budget.costs import StepCosts
from python_backend.budget.draft_payoff import Prices, Worth, best_call, gains, prices, worth

TABLE = CostTable(
    depth=4,
    context_length=8,
    batch_sizes=(1, 2),
    fractions=(0.0, 1.0),
    verify=((20.0, 40.0), (30.0, 70.0)),
    draft={"network": (10.0, 12.0)},
)


@given(
    gain=st.lists(st.lists(st.floats(-2, 4), min_size=3, max_size=3), min_size=1, max_size=5),
    steps=st.lists(st.floats(0, 2), min_size=15, max_size=15),
)
def test_no_other_call_would_be_worth_more(gain, steps):
    """Against every choice of sequences and every depth."""
    prices = np.cumsum(np.array(steps).reshape(5, 3), axis=0)  # of a call for 1, 2, … sequences, by depth
    everyone, gain = range(len(gain)), np.array(gain)
    profits = [
        sum(gain[i, depth - 1] for i in chosen) - prices[count - 1, depth - 1]
        for depth in (1, 2, 3)
        for count in range(1, len(gain) + 1)
        for chosen in combinations(everyone, count)
    ]
    call = best_call(gain, lambda count, depth: prices[count - 1, depth - 1])
    profit = 0.0
    if call.depth:
        profit = float(gain[call.members, call.depth - 1].sum()) - prices[call.members.sum() - 1, call.depth - 1]
    assert math.isclose(profit, max(0.0, *profits), abs_tol=1e-9)
    assert bool(call.members.any()) == bool(call.depth)


def test_drafts_that_are_seldom_accepted_are_shallow_and_those_that_are_often_deep():
    def depth(chance):
        one = Worth()
        for _ in range(40):
            one.see([chance] * 7)
        return best_call(gains(one.expected(7)[None], 0.1, np.zeros(1)), lambda _, depth: 0.1 * depth).depth

    depths = [depth(chance) for chance in (0.05, 0.3, 0.6, 0.95)]
    assert depths == sorted(depths)
    assert (depths[0], depths[-1]) == (0, 7)


def test_what_was_not_drafted_keeps_its_first_chance():
    one = Worth()
    for _ in range(40):
        one.see([0.9, 0.8])
    assert one.expected(4) == pytest.approx([0.9, 0.72, 0.72 * 0.7, 0.72 * 0.49], rel=1e-3)
    for _ in range(40):
        one.see([])
    assert one.expected(4)[0] < 1e-3


def served(decide, steps=3000):
    """Tokens per millisecond of a simulated server: one sequence, drafts right with a chance that changes every 200
    steps, a pass of 10 ms and 1 ms a further row, a draft call of 2 ms and 1 ms a draft."""
    random, one, ms, tokens = np.random.default_rng(0), Worth(), 0.0, 0
    for step in range(steps):
        chance = (0.05, 0.9, 0.5)[step // 200 % 3]
        depth = decide(one, step, chance)
        ms += 10 + (2 + 2 * depth if depth else 0)
        right = random.random(7) < chance
        tokens += 1 + int(np.logical_and.accumulate(right[:depth]).sum())
        if depth:
            one.see([min(max(chance + random.normal(0, 0.1), 0.0), 1.0)] * depth)
            one.rate(depth, PRICE.row, PRICE.ms * (2 + depth), 16)
    return tokens / ms


PRICE = Prices(ms=0.1, row=0.1)


def test_the_chosen_depth_is_better_than_any_fixed_one_and_near_one_that_knows_the_chances():
    def chosen(one, step, _):
        gain = gains(one.expected(7)[None], PRICE.row, np.zeros(1))
        return best_call(gain, lambda _, depth: PRICE.ms * (2 + depth)).depth or 2 * one.due(step)

    def known(_one, _step, chance):
        rate = [(1 + sum(chance**k for k in range(1, d + 1))) / (10 + (2 + 2 * d if d else 0)) for d in range(8)]
        return int(np.argmax(rate))

    mine = served(chosen)
    assert mine > 0.9 * served(known)
    assert mine > max(served(lambda *_, fixed=fixed: fixed) for fixed in range(8))


@given(confidence=st.lists(st.floats(0, 1), min_size=1, max_size=7), row=st.floats(0, 1))
def test_drafts_are_worth_what_the_best_prefix_of_them_brings(confidence, row):
    survival = np.cumprod(confidence)
    prefixes = [float(survival[:k].sum()) - k * row for k in range(len(survival) + 1)]
    assert math.isclose(worth(survival[None], row)[0], max(prefixes), abs_tol=1e-9)


@pytest.mark.parametrize(("batch", "ms", "row"), [(1, 1 / 20, 20 / 4 / 20), (2, 2 / 30, 40 / 8 * 2 / 30)])
def test_prices_are_what_plain_decoding_would_emit_in_the_time(batch, ms, row):
    got = prices(StepCosts(TABLE), batch, 16)
    assert (got.ms, got.row, got.max_skipped_steps) == (pytest.approx(ms), pytest.approx(row), 16)


def test_pauses_grow_while_a_drafter_loses_and_end_when_it_wins():
    one, pauses = Worth(), []
    while one.pause < 16:
        one.rate(2, 0.1, 5.0, 16)
        pauses.append(one.pause)
    assert [p for p in pauses if p > 1] == [2, 4, 8, 16]
    one.rate(2, 0.1, 5.0, 16)
    assert one.pause == 16
    one.rate(2, 0.1, 0.1, 16)
    assert one.pause == 1


def test_those_who_paused_try_again_in_the_same_steps():
    long, short = Worth(pause=8), Worth(pause=2)
    tries = [step for step in range(33) if long.due(step)]
    assert tries == [0, 8, 16, 24, 32]
    assert all(short.due(step) for step in tries)
