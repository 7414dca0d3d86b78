"""Acceptance on the device chooses the tokens that acceptance on the host chooses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backend.sampling import verify
from python_backend.sampling import verify_torch as on_device
from tests.python_backend.sampling.test_verify_torch import FEATURES, random_step


@pytest.mark.parametrize("vocabulary", [97, 1500, 49152])
@pytest.mark.parametrize("features", [[], ["top_k"], ["top_p"], ["min_p"], list(FEATURES)], ids="+".join)
def test_the_same_tokens_and_drafts(device, features, vocabulary):
    rng = np.random.default_rng(vocabulary + len(features))
    accepted = rows = 0
    for _ in range(25 if vocabulary < 10_000 else 3):
        step, history, logits = random_step(rng, vocabulary, features)
        decided = verify.logit_rows(step)
        if len(logits):  # let most drafts be right
            chosen = verify.choose(step, verify.decided_rows(step), logits.copy(), history.tokens[step.slot])
            follows = np.flatnonzero(np.diff(decided) == 1)
            keep = follows[rng.random(len(follows)) < 0.8]
            step.token_ids[decided[keep] + 1] = chosen[keep]
            history.write(step)
        expected = verify.accept(step, logits.copy(), history)
        actual = on_device.accept(step, torch.from_numpy(logits.copy()).to(device), history)
        for name in ("accepted", "next_token", "log_prob_count"):
            np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
        np.testing.assert_allclose(actual.log_probs, expected.log_probs, rtol=1e-5, atol=1e-5)
        accepted += int(expected.accepted.sum())
        rows += len(logits)
    assert rows > accepted > 0
