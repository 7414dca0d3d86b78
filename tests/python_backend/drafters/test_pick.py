"""Drafts race as the target does, and requests keep to what they ask for."""

from __future__ import annotations

import numpy as np
import torch

from python_backend.drafters.drafting import take
from python_backend.drafters.pick import LIKELIEST, FirstChoice, pick_for
from python_backend.sampling.noise import race

VOCABULARY = 300


def race_of(temperature, top_k=0, top_p=0.0, seed=None, anchor=None):
    """The pick of as many sequences as there are temperatures."""
    n = len(temperature)
    return pick_for(
        np.array(temperature, dtype=np.float32),
        np.broadcast_to(np.int32(top_k), n),
        np.broadcast_to(np.float32(top_p), n),
        np.arange(n, dtype=np.uint64) if seed is None else seed,
        np.arange(n) if anchor is None else anchor,
        VOCABULARY,
    )


def chosen(pick, tokens, logits):
    """[N] tokens of draft 0."""
    return take(tokens, pick.scores(tokens, logits, 0))[0]


def test_over_all_tokens_a_draft_is_what_the_target_would_draw():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(200, VOCABULARY)).astype(np.float32) * 2
    temperature = generator.uniform(0.3, 2, size=200).astype(np.float32)
    seed, anchor = generator.integers(0, 1 << 60, 200).astype(np.uint64), generator.integers(0, 500, 200)
    expected = race(logits / temperature[:, None], seed, anchor + 1)
    best = torch.from_numpy(logits).sort(dim=-1, descending=True)
    assert (
        chosen(race_of(temperature, seed=seed, anchor=anchor), best.indices, best.values).tolist() == expected.tolist()
    )


def test_noise_belongs_to_the_place_of_a_draft():
    tokens, logits = torch.arange(3 * 50).view(3, 50) % VOCABULARY, torch.zeros(3, 50)
    first, third = race_of([0.7, 0.0, 1.3]), race_of([0.7, 0.0, 1.3], anchor=np.arange(3) + 2)
    assert torch.equal(first.scores(tokens, logits, 2), third.scores(tokens, logits, 0))
    assert not torch.equal(first.scores(tokens, logits, 0), third.scores(tokens, logits, 0))


def test_beside_others_a_greedy_request_keeps_to_its_likeliest_candidates():
    tokens, logits = torch.arange(VOCABULARY).expand(2, -1), torch.zeros(2, VOCABULARY)
    greedy, drawn = torch.isfinite(race_of([0, 1]).scores(tokens, logits, 0))
    assert greedy.nonzero().flatten().tolist() == list(range(LIKELIEST))
    assert drawn.all()


def test_greedy_requests_alone_need_no_noise():
    pick = race_of([0, 0])
    assert isinstance(pick, FirstChoice)
    assert pick.candidates == LIKELIEST


def test_top_k_and_top_p_bound_what_is_drafted():
    logits = torch.tensor([[2.0, 1.0, 0.0, -9.0]]).expand(400, 4)
    tokens = torch.arange(4).expand(400, 4)

    def drafted(top_k, top_p):
        return set(chosen(race_of(np.ones(400), top_k, top_p, np.zeros(400, np.uint64)), tokens, logits).tolist())

    assert drafted(0, 0) == {0, 1, 2}
    assert drafted(2, 0) == {0, 1}
    assert drafted(0, 0.6) == {0}
    assert drafted(0, 0.7) == {0, 1}


def test_a_clear_winner_is_surer_than_a_close_one():
    tokens = torch.arange(2).expand(2, 2)
    _, probability = take(tokens, torch.tensor([[9.0, 1.0], [2.0, 1.9]]))
    assert probability[0] > 0.99
    assert 0.5 < probability[1] < 0.53
