"""D-cut against brute force."""

import itertools
import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.budget.dcut import grid_rows, rank, select, survival

confidences = st.integers(1, 4).flatmap(
    lambda b: st.integers(1, 3).flatmap(
        lambda d: st.lists(
            st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), min_size=d, max_size=d), min_size=b, max_size=b
        )
    )
)
RHO = (0.25, 0.5, 0.75, 1.0)


def cost(batch, rows):
    return 10 + 0.7 * rows + 0.05 * rows * rows


def best_by_brute_force(scores, available, drafts):
    """Highest sum of scores over all ways to keep `drafts` drafts as prefixes."""
    ways = itertools.product(*(range(n + 1) for n in available))
    return max(sum(scores[i, :n].sum() for i, n in enumerate(way)) for way in ways if sum(way) == drafts)


@settings(max_examples=200, deadline=None)
@given(confidences, st.data())
def test_the_choice_is_the_best_of_the_grid_by_brute_force(confidence, data):
    confidence = np.array(confidence, dtype=np.float32)
    batch, depth = confidence.shape
    available = np.array([data.draw(st.integers(0, depth)) for _ in range(batch)])
    choice = select(confidence, available, batch * depth, RHO, cost)
    scores = survival(confidence)
    rates = []
    for rho in RHO:
        drafts = min(grid_rows(rho, batch, batch * depth) - batch, int(available.sum()))
        rates.append((batch + best_by_brute_force(scores, available, drafts)) / cost(batch, batch + drafts))
    assert math.isclose(choice.expected_tokens / choice.predicted_ms, max(rates), rel_tol=1e-9)


@settings(max_examples=200, deadline=None)
@given(confidences, st.data())
def test_the_kept_set_is_a_prefix_within_the_budget(confidence, data):
    confidence = np.array(confidence, dtype=np.float32)
    batch, depth = confidence.shape
    available = np.array([data.draw(st.integers(0, depth)) for _ in range(batch)])
    choice = select(confidence, available, batch * depth, RHO, cost)
    assert (choice.kept <= available).all()
    assert (choice.kept >= 0).all()
    assert choice.rows == batch + choice.kept.sum()
    assert choice.rows <= max(grid_rows(choice.rho, batch, batch * depth), batch)
    kept = np.arange(depth) < choice.kept[:, None]
    dropped = (np.arange(depth) < available[:, None]) & ~kept
    scores = survival(confidence)
    if kept.any() and dropped.any():
        assert scores[kept].min() >= scores[dropped].max() - 1e-12


@given(st.integers(1, 128), st.integers(0, 16), st.integers(1, 4))
def test_grid_rows_follow_the_papers_formula(batch, depth, quarter):
    exact = max(Fraction(batch), Fraction(quarter, 4) * batch * (depth + 1))
    assert grid_rows(quarter / 4, batch, batch * depth) == math.ceil(exact)


def test_ties_go_to_the_shallower_draft_then_to_the_earlier_sequence():
    ranking = rank(np.ones((3, 2)), np.array([2, 2, 2]))
    assert ranking.sequence.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_steep_cost_cuts_and_a_flat_cost_keeps():
    confidence = np.full((4, 4), 0.8, dtype=np.float32)
    available = np.full(4, 4)
    flat = select(confidence, available, 16, RHO, lambda batch, rows: 50.0)
    steep = select(confidence, available, 16, RHO, lambda batch, rows: float(rows**2))
    assert flat.rho == 1.0
    assert steep.rho == 0.25


def test_rho_0_is_plain_decoding():
    confidence = np.full((4, 4), 0.05, dtype=np.float32)
    choice = select(confidence, np.full(4, 4), 16, (0.0, *RHO), lambda batch, rows: float(rows))
    assert (choice.rows, choice.kept.sum(), choice.rho) == (4, 0, 0.0)
