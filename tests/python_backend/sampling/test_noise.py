"""The noise is Philox, has the law it claims, and depends on (seed, position, token) only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.sampling.noise import BLOCK, exponentials, gumbel, philox, race

# Random123's kat_vectors file: philox4x32, 10 rounds.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, expected):
    words = philox(
        tuple(np.array([c], dtype=np.uint32) for c in counter), tuple(np.array([k], dtype=np.uint32) for k in key)
    )
    assert [int(w[0]) for w in words] == expected


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**20),
    vocabulary=st.integers(1, 5 * BLOCK + 3),
    spread=st.floats(0.01, 8.0),
    holes=st.floats(0, 0.95),
    data=st.integers(0, 2**32 - 1),
)
def test_the_lazy_race_finds_the_winner_of_the_whole_field(seed, position, vocabulary, spread, holes, data):
    rng = np.random.default_rng(data)
    logits = (rng.normal(size=vocabulary) * spread).astype(np.float32)
    logits[(rng.random(vocabulary) < holes) & (np.arange(vocabulary) != rng.integers(vocabulary))] = -np.inf
    winner = race(logits[None], np.array([seed], dtype=np.uint64), np.array([position]))[0]
    assert winner == np.argmax(logits - np.log(exponentials(seed, position, vocabulary)))


def test_the_field_is_independent_exponentials():
    field = np.stack([exponentials(3, t, 3 * BLOCK) for t in range(2000)])
    assert abs(field.mean() - 1) < 0.01
    assert abs(field.var() - 1) < 0.02
    correlation = np.corrcoef(field[:, :BLOCK].T)
    assert np.abs(correlation - np.eye(BLOCK)).max() < 0.11  # members of a block share its first arrival, not their law
    assert abs((field > 2).mean() - np.exp(-2)) < 0.003


def test_the_noise_of_some_tokens_is_that_of_the_field():
    rng = np.random.default_rng(4)
    vocabulary = 5 * BLOCK + 7
    seeds, positions = rng.integers(0, 2**63, 6).astype(np.uint64), rng.integers(0, 2000, 6)
    tokens = rng.integers(0, vocabulary, (6, 50))
    tokens[:, 0] = vocabulary - 1
    some = gumbel(seeds, positions, tokens, vocabulary)
    for i in range(6):
        field = exponentials(int(seeds[i]), int(positions[i]), vocabulary)
        assert np.array_equal(some[i], -np.log(field)[tokens[i]])


def test_a_row_does_not_depend_on_its_batch_mates():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(9, 500)).astype(np.float32)
    seeds, positions = rng.integers(0, 2**63, 9).astype(np.uint64), rng.integers(0, 2000, 9)
    together = race(logits, seeds, positions)
    alone = [race(logits[i : i + 1], seeds[i : i + 1], positions[i : i + 1])[0] for i in range(9)]
    assert together.tolist() == alone


def test_shared_noise_agrees_more_often_than_independent_draws():
    """q close to p: the same race on both agrees far more often than p's and q's own draws would."""
    rng = np.random.default_rng(2)
    rows, vocabulary = 3000, 200
    p = rng.normal(size=(rows, vocabulary)).astype(np.float32) * 2
    q = p + rng.normal(size=p.shape).astype(np.float32) * 0.3
    seeds, positions = np.full(rows, 11, dtype=np.uint64), np.arange(rows)
    shared = (race(p, seeds, positions) == race(q, seeds, positions)).mean()
    independent = (race(p, seeds, positions) == race(q, seeds + 1, positions)).mean()
    assert shared > independent + 0.3
