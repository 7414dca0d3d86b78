"""The losses against their definitions, term by term."""

from __future__ import annotations

import math

import pytest
import torch

from training.fit import losses
from training.fit.losses import Chains

N, D, V = 5, 4, 6


@pytest.fixture
def chains():
    torch.manual_seed(0)
    length = torch.tensor([4, 4, 2, 1, 3])
    return Chains(
        logits=torch.randn(N, D, V, dtype=torch.float64, requires_grad=True),
        teacher=torch.rand(N, D, V, dtype=torch.float64).softmax(-1),
        token=torch.randint(-1, V, (N, D)),
        valid=torch.arange(D) < length[:, None],
    )


def alpha(chains, i, k):
    q = chains.logits.softmax(-1)[i, k]
    return float(torch.minimum(q, chains.teacher[i, k]).sum().detach())


def expected(chains, i):
    """E[accepted] of a chain, summed over where it may end."""
    drafts = int(chains.valid[i].sum())
    reach = [math.prod(alpha(chains, i, k) for k in range(n)) for n in range(drafts + 1)] + [0.0]
    return sum(n * (reach[n] - reach[n + 1]) for n in range(drafts + 1))


def test_end_to_end_is_the_expected_number_of_accepted_drafts(chains):
    value, weight = losses.loss(chains, "e2e", "uniform", torch.ones(N, D))
    want = sum(1 - expected(chains, i) / int(chains.valid[i].sum()) for i in range(N))
    assert float(value) == pytest.approx(want)
    assert float(weight) == N


def test_lk_moves_from_kl_to_total_variation_as_they_agree(chains):
    value, weight = losses.loss(chains, "lk", "uniform", torch.ones(N, D))
    want = 0.0
    for i in range(N):
        for k in range(int(chains.valid[i].sum())):
            p, q = chains.teacher[i, k], chains.logits.softmax(-1)[i, k]
            share = math.exp(-3 * alpha(chains, i, k))
            want += share * float((p * (p / q).log()).sum()) + (1 - share) * (1 - alpha(chains, i, k))
    assert float(value) == pytest.approx(want)
    assert float(weight) == int(chains.valid.sum())


def test_dpace_weights_are_the_sums_of_later_reaches(chains):
    weights = losses.position_weights(chains, "dpace")
    q = chains.logits.softmax(-1)
    for i in range(N):
        drafts = int(chains.valid[i].sum())
        gate = [0.5 * (float(q[i, k, chains.token[i, k]]) if chains.token[i, k] >= 0 else 0.0) + 0.5 for k in range(D)]
        for k in range(D):
            want = sum(math.prod(gate[: j + 1]) for j in range(k, drafts)) if k < drafts else 0.0
            assert float(weights[i, k]) == pytest.approx(want)


@pytest.mark.parametrize("name", ["ce", "kl", "lk", "tv", "e2e"])
@pytest.mark.parametrize("weighting", ["uniform", "decay", "dpace"])
def test_what_is_not_valid_leaves_no_trace(chains, name, weighting):
    value, _ = losses.loss(chains, name, weighting, torch.ones(N, D))
    value.backward()
    assert chains.logits.grad[~chains.valid].abs().max() == 0
    assert (chains.logits.grad[chains.valid].abs().sum(-1) > 0).all()


def test_each_loss_is_least_where_drafter_and_target_are_the_same(chains):
    same = chains._replace(logits=chains.teacher.log())
    for name in ("kl", "lk", "tv", "e2e"):
        best, _ = losses.loss(same, name, "uniform", torch.ones(N, D))
        other, _ = losses.loss(chains, name, "uniform", torch.ones(N, D))
        assert float(best) == pytest.approx(0, abs=1e-9)
        assert float(other) > 0.1
