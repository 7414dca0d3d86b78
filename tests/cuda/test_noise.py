"""The noise on the device is the noise of the host."""

from __future__ import annotations

import numpy as np
import torch

from python_backend.sampling import noise
from python_backend.sampling import noise_torch as device_noise

ROWS, VOCABULARY = 64, 49152


def random_keys(device: str) -> tuple[np.ndarray, np.ndarray, device_noise.Keys]:
    rng = np.random.default_rng(0)
    seed, position = rng.integers(0, 2**64, ROWS, dtype=np.uint64), rng.integers(0, 2**20, ROWS)
    return seed, position, device_noise.keys_of(seed, position, device)


def test_philox_gives_the_words_of_the_host_to_the_bit(device):
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (6, 100_000), dtype=np.uint32)
    expected = noise.philox(tuple(words[:4]), tuple(words[4:]))
    there = [torch.from_numpy(w.astype(np.int64)).to(device) for w in words]
    actual = device_noise.philox(tuple(there[:4]), tuple(there[4:]))
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(mine.cpu().numpy(), theirs.astype(np.int64))


def test_exponentials_are_those_of_the_host_up_to_the_last_bit_of_a_logarithm(device, note):
    words = np.random.default_rng(2).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    expected = noise._exponential(words)
    actual = device_noise._exponential(torch.from_numpy(words.astype(np.int64)).to(device)).cpu().numpy()
    off = np.abs(actual - expected) / np.spacing(expected)
    note("exponentials equal to the bit", f"{(off == 0).mean():.4%}, largest difference {off.max():.0f} ulp")
    assert off.max() <= 4


def test_every_race_has_the_winner_of_the_host(device):
    seed, position, keys = random_keys(device)
    rng = np.random.default_rng(3)
    for spread in (0.01, 1.0, 4.0):
        logits = (rng.normal(size=(ROWS, VOCABULARY)) * spread).astype(np.float32)
        logits[:, rng.random(VOCABULARY) < 0.3] = -np.inf
        actual = device_noise.race(torch.from_numpy(logits).to(device), keys)
        assert actual.tolist() == noise.race(logits, seed, position).tolist()


def test_the_noise_of_candidates_is_that_of_the_host(device):
    seed, position, keys = random_keys(device)
    tokens = np.random.default_rng(4).integers(0, VOCABULARY, (ROWS, 512))
    actual = device_noise.gumbel(torch.from_numpy(tokens).to(device), keys, VOCABULARY)
    np.testing.assert_allclose(
        actual.cpu().numpy(), noise.gumbel(seed, position, tokens, VOCABULARY), rtol=1e-9, atol=1e-12
    )
