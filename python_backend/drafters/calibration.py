"""Confidences that mean what they say: a logistic curve for each draft position, fitted on held-out acceptance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

CALIBRATION = "calibration.json"
EPSILON = 1e-6


class Curve(BaseModel):
    """P(accepted) = sigmoid(slope * logit(p) + offset), p the probability that the drafter gave its draft."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slope: tuple[float, ...]  # by position
    offset: tuple[float, ...]

    def __call__(self, probability: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """probability: [B, D], D at most the curve's positions."""
        depth = probability.shape[1]
        p = np.clip(probability, EPSILON, 1 - EPSILON)
        score = np.log(p / (1 - p)) * np.array(self.slope[:depth]) + np.array(self.offset[:depth])
        return (1 / (1 + np.exp(-score))).astype(np.float32)


class Calibration(BaseModel):
    """One curve for drafts at temperature 0 and one for drafts that race."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    greedy: Curve
    sampled: Curve

    def __call__(
        self, probability: npt.NDArray[np.float32], temperature: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """[B, D] from the drafter's own probabilities [B, D] and the requests' temperatures [B]."""
        return np.where(temperature[:, None] > 0, self.sampled(probability), self.greedy(probability))

    @classmethod
    def read(cls, folder: Path) -> Calibration | None:
        """None where the drafter was not calibrated: its probabilities then stand as they are."""
        file = folder / CALIBRATION
        return cls.model_validate_json(file.read_text()) if file.is_file() else None
