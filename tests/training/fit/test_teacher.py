"""What a GPU computes anew is what an engine captures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.checkpoints import VOCABULARY, load_engine, save_tiny
from training.corpus.shards import compute_features
from training.fit import teacher
from training.fit.teacher import Teacher

LAYERS = (0, 1, 3)  # 3 is the final norm's output; the last layer's own is not to be had


@pytest.fixture(scope="module", params=["llama", "qwen3", "qwen3_moe"])
def folder(request, tmp_path_factory):
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


def test_states_are_those_that_an_engine_captures(folder, monkeypatch):
    monkeypatch.setattr(teacher, "ROWS_AT_ONCE", 40)  # several passes of several sequences
    random = np.random.default_rng(0)
    sequences = [random.integers(5, VOCABULARY, n) for n in (9, 30, 2, 17, 9, 21)]
    captured = compute_features(load_engine(folder, feature_layers=LAYERS), sequences)
    found = torch.cat(Teacher(folder, "cpu").states(sequences, LAYERS))
    assert found.shape == captured.shape == (sum(len(s) - 1 for s in sequences), len(LAYERS) * 48)
    torch.testing.assert_close(found, captured, rtol=0.02, atol=0.02)  # both are rounded to bfloat16


def test_a_layer_that_transformers_does_not_give_is_refused(folder):
    with pytest.raises(ValueError, match=r"layer 2 is not to be had before the final norm: take 1 or 3"):
        Teacher(folder, "cpu").states([np.array([5, 6, 7])], (2,))
