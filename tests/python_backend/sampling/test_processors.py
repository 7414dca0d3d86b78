"""Each processor against a naive definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.sampling import processors


def softmax(row):
    weight = np.exp((row - row.max()).astype(np.float64))
    return weight / weight.sum()


rows = st.builds(
    lambda seed, size, spread: (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32),
    st.integers(0, 2**32 - 1),
    st.integers(2, 400),
    st.floats(0.1, 10),
)


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(1, 500))
def test_top_k_keeps_the_k_most_probable(row, k):
    kept = row.copy()
    processors.keep_top_k(kept, k)
    expected = np.argsort(-row, kind="stable")[: min(k, len(row))]
    assert set(np.flatnonzero(np.isfinite(kept))) == set(expected)


@settings(max_examples=150, deadline=None)
@given(rows, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_head_that_reaches_the_mass(row, top_p):
    kept = row.copy()
    processors.keep_top_p(kept, top_p)
    p = softmax(row)
    order = np.argsort(-p, kind="stable")
    mass = np.cumsum(p[order])
    size = int(np.isfinite(kept).sum())
    assert set(np.flatnonzero(np.isfinite(kept))) == set(order[:size])
    assert mass[size - 1] >= top_p - 1e-5
    assert size == 1 or mass[size - 2] < top_p + 1e-5


@given(rows, st.floats(0.001, 1.0))
def test_min_p_compares_with_the_most_probable(row, min_p):
    kept = row.copy()
    processors.keep_min_p(kept, min_p)
    p = softmax(row)
    sure = np.abs(p / p.max() - min_p) > 1e-5
    assert (np.isfinite(kept) == (p >= min_p * p.max()))[sure].all()


def test_penalties_by_hand():
    row = np.array([2.0, -2.0, 1.0, 3.0], dtype=np.float32)
    processors.penalise(row, np.array([0, 1, 3, 3], dtype=np.int32), 2, 2.0, 0.5, 0.25)
    # 0, 1: prompt only -> repetition; 3: twice in the output -> repetition, presence and two times frequency.
    assert row.tolist() == [1.0, -4.0, 1.0, 1.5 - 0.5 - 0.5]


def test_a_banned_word_loses_its_last_token_only_after_its_head():
    words = [np.array([5, 6]), np.array([2])]
    for history, banned in (([1, 5], {6, 2}), ([5, 1], {2}), ([], {2})):
        row = np.zeros(8, dtype=np.float32)
        processors.ban_words(row, np.array(history, dtype=np.int32), words)
        assert set(np.flatnonzero(np.isinf(row))) == banned
