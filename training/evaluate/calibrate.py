"""Fit the confidences of a drafter on what was accepted, and say how far off they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from python_backend.drafters.calibration import EPSILON, Curve

BINS = 15
LEAST = 50  # observations of a position below which it takes the curve of the position before


class Observations(NamedTuple):
    """Drafts whose predecessors were all accepted."""

    probability: npt.NDArray[np.float64]  # [M] that the drafter gave
    position: npt.NDArray[np.int64]  # [M] 0 for the first draft
    accepted: npt.NDArray[np.bool_]  # [M]


def observe(
    tokens: npt.NDArray[np.int64], probability: npt.NDArray[np.float32], ahead: npt.NDArray[np.int64]
) -> Observations:
    """tokens, probability: [A, D] drafts after anchors 0..A-1 of a text; ahead: [A] the token after each anchor."""
    anchors, depth = tokens.shape
    rows = np.arange(anchors)[:, None] + np.arange(depth)
    inside = rows < anchors
    right = (tokens == ahead[np.minimum(rows, anchors - 1)]) & inside
    reached = np.logical_and.accumulate(np.column_stack((np.ones(anchors, dtype=bool), right[:, :-1])), axis=1) & inside
    position = np.broadcast_to(np.arange(depth), tokens.shape)
    return Observations(probability[reached].astype(np.float64), position[reached], right[reached])


def join(parts: list[Observations]) -> Observations:
    return Observations(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def fit(observations: Observations, depth: int) -> Curve:
    """One logistic curve a position, by maximum likelihood."""
    slopes, offsets = [1.0], [0.0]
    for position in range(depth):
        mine = observations.position == position
        if mine.sum() < LEAST or observations.accepted[mine].all() or not observations.accepted[mine].any():
            slopes.append(slopes[-1])
            offsets.append(offsets[-1])
            continue
        p = np.clip(observations.probability[mine], EPSILON, 1 - EPSILON)
        score, right = np.log(p / (1 - p)), observations.accepted[mine]

        def loss(
            w: npt.NDArray[np.float64], score: npt.NDArray[np.float64] = score, right: npt.NDArray[np.bool_] = right
        ) -> float:
            z = w[0] * score + w[1]
            return float(np.logaddexp(0, z).mean() - (z * right).mean())

        slope, offset = minimize(loss, np.array([1.0, 0.0])).x
        slopes.append(round(float(slope), 4))
        offsets.append(round(float(offset), 4))
    return Curve(slope=tuple(slopes[1:]), offset=tuple(offsets[1:]))


def expected_calibration_error(confidence: npt.NDArray[np.float64], accepted: npt.NDArray[np.bool_]) -> float:
    """Mean distance between confidence and acceptance over equally wide bins, weighted by their counts."""
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    error = 0.0
    for b in range(BINS):
        mine = place == b
        if mine.any():
            error += mine.mean() * abs(confidence[mine].mean() - accepted[mine].mean())
    return float(error)


def apply(curve: Curve, observations: Observations) -> npt.NDArray[np.float64]:
    """[M] calibrated confidence of each observation."""
    depth = len(curve.slope)
    table = np.repeat(observations.probability[:, None].astype(np.float32), depth, axis=1)
    return curve(table)[np.arange(len(table)), observations.position].astype(np.float64)
