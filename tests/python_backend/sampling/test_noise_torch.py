"""The noise on a device is the noise of the host: the same words, and the same winner of every race."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.sampling import noise
from python_backend.sampling import noise_torch as device_noise
from python_backend.sampling.noise import BLOCK
from tests.python_backend.sampling.test_noise import KNOWN_ANSWERS

words = st.integers(0, 2**32 - 1)


def on_host(values):
    return [np.array([v], dtype=np.uint32) for v in values]


def on_device(values):
    return [torch.tensor([v]) for v in values]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, expected):
    answer = device_noise.philox(tuple(on_device(counter)), tuple(on_device(key)))
    assert [int(w[0]) for w in answer] == expected


@given(counter=st.tuples(words, words, words, words), key=st.tuples(words, words))
def test_philox_gives_the_words_of_the_host(counter, key):
    expected = noise.philox(tuple(on_host(counter)), tuple(on_host(key)))
    actual = device_noise.philox(tuple(on_device(counter)), tuple(on_device(key)))
    assert [int(w[0]) for w in actual] == [int(w[0]) for w in expected]


def test_philox_broadcasts_counters_and_keys():
    block, position = torch.arange(5)[None], torch.tensor([[7], [2**20]])
    answer = device_noise.philox((block, position, 1, 0), (torch.tensor([[3], [4]]), torch.tensor([[5], [6]])))
    for i, b in np.ndindex(2, 5):
        one = device_noise.philox(
            tuple(on_device([b, int(position[i]), 1, 0])), (torch.tensor([3 + i]), torch.tensor([5 + i]))
        )
        assert [int(w[i, b]) for w in answer] == [int(w[0]) for w in one]


@settings(max_examples=100)
@given(
    rows=st.integers(1, 6),
    vocabulary=st.integers(1, 5 * BLOCK + 3),
    spread=st.floats(0.01, 8.0),
    holes=st.floats(0, 0.95),
    data=st.integers(0, 2**32 - 1),
)
def test_the_race_has_the_winners_of_the_host(rows, vocabulary, spread, holes, data):
    rng = np.random.default_rng(data)
    logits = (rng.normal(size=(rows, vocabulary)) * spread).astype(np.float32)
    spared = np.arange(vocabulary) == rng.integers(vocabulary, size=(rows, 1))
    logits[(rng.random((rows, vocabulary)) < holes) & ~spared] = -np.inf
    seed = rng.integers(0, 2**64, rows, dtype=np.uint64)
    position = rng.integers(0, 2**20, rows)
    actual = device_noise.race(torch.from_numpy(logits), device_noise.keys_of(seed, position, "cpu"))
    assert actual.tolist() == noise.race(logits, seed, position).tolist()


def test_the_noise_of_some_tokens_is_that_of_the_host():
    rng = np.random.default_rng(5)
    vocabulary = 5 * BLOCK + 7
    seed, position = rng.integers(0, 2**64, 6, dtype=np.uint64), rng.integers(0, 2**20, 6)
    tokens = rng.integers(0, vocabulary, (6, 50))
    tokens[:, 0] = vocabulary - 1
    actual = device_noise.gumbel(torch.from_numpy(tokens), device_noise.keys_of(seed, position, "cpu"), vocabulary)
    np.testing.assert_allclose(actual.numpy(), noise.gumbel(seed, position, tokens, vocabulary), rtol=1e-12, atol=1e-12)
