"""The fitted classifier is one linear map that decides as the standardised regression it came from."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from python_backend.settings import WORKLOADS
from training.evaluate.fit_router import PENALTY, Prompts, fit


def prompts(count: int, seed: int) -> Prompts:
    """Three clouds that overlap, on axes of very different scale."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, len(WORKLOADS), count)
    scale = np.array([1e-2, 1.0, 1e3, 1.0, 1.0, 1.0])
    means = np.eye(len(WORKLOADS), 6)[kind] + draw.normal(size=(count, 6)) * 0.4
    return Prompts((means * scale + 5 * scale).astype(np.float32), [""] * count, [WORKLOADS[k] for k in kind])


def test_one_linear_map_decides_as_the_pipeline():
    learned, new = prompts(300, 0), prompts(200, 1)
    mine = fit(learned, 7, "sha")
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=2000))
    pipeline.fit(learned.pooled, learned.workload)
    expected = pipeline.predict(new.pooled)
    got = [mine(np.stack((row, row))) for row in new.pooled]  # of a prompt whose rows are all like their mean
    assert got == expected.tolist()
    assert np.mean([g == w for g, w in zip(got, new.workload, strict=True)]) > 0.8
    assert (mine.target_sha256, mine.layer) == ("sha", 7)
