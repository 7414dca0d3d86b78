"""Calibration finds the curve that made the data, and observations are those of a walk by hand."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.drafters.calibration import Calibration, Curve
from training.evaluate.calibrate import Observations, apply, expected_calibration_error, fit, join, observe


def made_by(slope, offset, count=20000, position=0, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.02, 0.98, count)
    truth = 1 / (1 + np.exp(-(slope * np.log(p / (1 - p)) + offset)))
    return Observations(p, np.full(count, position), rng.uniform(size=count) < truth)


def test_the_fit_finds_the_curve_of_each_position():
    data = join([made_by(0.6, -0.4), made_by(1.4, 0.3, position=1, seed=1)])
    curve = fit(data, depth=2)
    assert curve.slope == pytest.approx((0.6, 1.4), abs=0.06)
    assert curve.offset == pytest.approx((-0.4, 0.3), abs=0.06)


def test_calibrated_confidences_are_nearer_to_what_happens():
    data, fresh = made_by(0.5, -0.8), made_by(0.5, -0.8, seed=7)
    raw = expected_calibration_error(fresh.probability, fresh.accepted)
    calibrated = expected_calibration_error(apply(fit(data, 1), fresh), fresh.accepted)
    assert raw > 0.1
    assert calibrated < 0.02


def test_a_position_seen_too_rarely_takes_the_curve_before_it():
    data = join([made_by(0.6, -0.4), made_by(1.4, 0.3, count=20, position=1)])
    curve = fit(data, depth=3)
    assert curve.slope[1] == curve.slope[2] == curve.slope[0]


def test_observations_are_the_drafts_that_were_reached():
    tokens = np.array([[1, 2], [9, 3], [3, 9]])  # after anchors 0, 1, 2, where 1, 2, 3 follow
    probability = np.array([[0.9, 0.8], [0.7, 0.6], [0.5, 0.4]], dtype=np.float32)
    seen = observe(tokens, probability, np.array([1, 2, 3]))
    assert sorted(zip(seen.probability.round(1), seen.position, seen.accepted, strict=True)) == [
        (0.5, 0, True),
        (0.7, 0, False),
        (0.8, 1, True),
        (0.9, 0, True),
    ]


def test_requests_at_a_temperature_have_a_curve_of_their_own():
    sharp = Curve(slope=(1.0, 1.0), offset=(0.0, 0.0))
    blunt = Curve(slope=(0.0, 0.0), offset=(0.0, 0.0))
    confidence = Calibration(greedy=sharp, sampled=blunt)(
        np.full((2, 2), 0.9, np.float32), np.array([0, 1], np.float32)
    )
    assert confidence == pytest.approx(np.array([[0.9, 0.9], [0.5, 0.5]]), abs=1e-5)
