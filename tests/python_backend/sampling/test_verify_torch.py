"""Acceptance on a device chooses the tokens that acceptance on the host chooses, whatever the requests ask for."""

import numpy as np
import pytest
import torch

from python_backend.protocol import Part, TargetStep
from python_backend.sampling import verify, verify_torch
from python_backend.sampling.history import TokenHistory
from python_backend.sampling.params import SamplingParams, columns

ROUNDS = 120  # of about 13 rows each
LENGTH = 96
FEATURES = {
    "nothing": lambda rng, v: {},
    "top_k": lambda rng, v: {"top_k": int(rng.integers(1, v + 20))},
    "top_p": lambda rng, v: {"top_p": float(np.float32(rng.uniform(0.05, 1)))},
    "min_p": lambda rng, v: {"min_p": float(np.float32(rng.uniform(0.01, 0.5)))},
    "penalties": lambda rng, v: {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.25},
    "min_tokens": lambda rng, v: {"min_tokens": int(rng.integers(1, 60)), "end_ids": some_tokens(rng, v, 4)},
    "bad_words": lambda rng, v: {"bad_words": tuple(some_tokens(rng, v, 3) for _ in range(rng.integers(1, 6)))},
}


def some_tokens(rng, vocabulary, most):
    return tuple(rng.integers(0, vocabulary, rng.integers(1, most + 1)).tolist())


def params_of(rng, vocabulary, features):
    """One request; each feature is asked for by about half of them."""
    asked = {}
    for name in features:
        if rng.random() < 0.5:
            asked |= FEATURES[name](rng, vocabulary)
    temperature = 0.0 if rng.random() < 0.3 else float(np.float32(rng.uniform(0.2, 2)))
    seed = int(rng.integers(0, 2**64, dtype=np.uint64))
    return SamplingParams(temperature=temperature, seed=seed, return_log_probs=bool(rng.random() < 0.3), **asked)


def random_step(rng, vocabulary, features):
    """A step over 1 to 8 sequences, the history that it looks back on, and logits of its rows."""
    batch = int(rng.integers(1, 9))
    drafts = rng.integers(0, 6, batch)
    counts = drafts + rng.integers(1, 5, batch)
    past = np.array([rng.integers(0, LENGTH - c) for c in counts])
    prompt = [int(rng.integers(0, end)) for end in past + counts]
    sample = rng.random(batch) < 0.85
    sampling = columns([params_of(rng, vocabulary, features) for _ in range(batch)], prompt)
    slots = rng.permutation(batch + 3)[:batch]
    texts = [rng.integers(0, vocabulary, count) for count in counts]
    parts = map(Part, slots, past, texts, np.where(sample, drafts, 0), sample)
    step = TargetStep.of(list(parts), **sampling)
    history = TokenHistory(batch + 3, LENGTH)
    history.tokens[:] = rng.integers(0, vocabulary, history.tokens.shape)
    history.write(step)
    rows = len(verify.logit_rows(step))
    return step, history, (rng.normal(size=(rows, vocabulary)) * rng.uniform(0.5, 6)).astype(np.float32)


@pytest.mark.parametrize("features", [[name] for name in FEATURES] + [list(FEATURES)], ids=[*FEATURES, "everything"])
def test_every_row_gets_the_token_of_the_host(features):
    rng = np.random.default_rng(len(features) + sum(map(ord, features[0])))
    rows = 0
    for _ in range(ROUNDS):
        step, history, logits = random_step(rng, int(rng.choice([50, 97, 300, 1500])), features)
        decided = verify.decided_rows(step)
        if not len(logits):
            continue
        expected = verify.choose(step, decided, logits.copy(), history.tokens[step.slot])
        actual = verify_torch.choose(step, decided, torch.from_numpy(logits.copy()), history)
        np.testing.assert_array_equal(actual.numpy(), expected)
        rows += len(logits)
    assert rows > ROUNDS * 5


def test_the_same_drafts_are_accepted_with_the_same_log_probabilities():
    rng = np.random.default_rng(3)
    accepted = 0
    for _ in range(ROUNDS):
        step, history, logits = random_step(rng, 97, FEATURES)
        if len(logits):  # let most drafts be right
            chosen = verify.choose(step, verify.decided_rows(step), logits.copy(), history.tokens[step.slot])
            rows = verify.logit_rows(step)
            follows = np.flatnonzero(np.diff(rows) == 1)
            keep = follows[rng.random(len(follows)) < 0.8]
            step.token_ids[rows[keep] + 1] = chosen[keep]
            history.write(step)
        expected = verify.accept(step, logits.copy(), history)
        actual = verify_torch.accept(step, torch.from_numpy(logits.copy()), history)
        for name in ("accepted", "next_token", "log_prob_count"):
            np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
        np.testing.assert_allclose(actual.log_probs, expected.log_probs, rtol=1e-5, atol=1e-5)
        accepted += int(expected.accepted.sum())
    assert accepted > ROUNDS


def test_mass_beyond_the_first_candidates_is_found():
    """A flat distribution, of which top-p keeps more tokens than are looked at first."""
    vocabulary = 6000
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(4, vocabulary)) * 0.01).astype(np.float32)
    params = [SamplingParams(temperature=1.0, top_p=p, seed=i) for i, p in enumerate((0.9, 0.05, 0.5, 0.0))]
    step = TargetStep.of([Part(slot, 0, [0]) for slot in range(4)], **columns(params, [1] * 4))
    history = TokenHistory(4, 8)
    expected = verify.accept(step, logits.copy(), history)
    actual = verify_torch.accept(step, torch.from_numpy(logits.copy()), history)
    assert actual.next_token.tolist() == expected.next_token.tolist()


def test_another_number_of_rows_is_refused():
    step, history, _ = random_step(np.random.default_rng(1), 50, [])
    with pytest.raises(ValueError, match="rows of logits for"):
        verify_torch.accept(step, torch.zeros(999, 50), history)
