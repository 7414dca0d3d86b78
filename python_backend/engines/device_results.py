"""Results of engines whose tensors live on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from python_backend.protocol import Array, TargetResult, TargetStep
from python_backend.sampling.verify import Acceptance


def result_of(acceptance: Acceptance, counts: Array, captures: bool) -> TargetResult:
    """A step's result but for the features. counts: [B] rows whose features are read."""
    return TargetResult(
        accepted=acceptance.accepted,
        next_token=acceptance.next_token,
        feature_count=counts if captures else np.zeros_like(counts),
        features=np.zeros((0, 0), dtype=np.float32),
        log_prob_count=acceptance.log_prob_count,
        log_probs=acceptance.log_probs,
    )


def with_features(result: TargetResult, features: Tensor | None) -> TargetResult:
    """The result as it goes over the wire. features: [C, F]."""
    return result if features is None else replace(result, features=on_host(features))


def on_host(features: Tensor) -> npt.NDArray[np.float32]:
    """Features as they go over the wire."""
    array: npt.NDArray[np.float32] = features.float().cpu().numpy()
    return array


def settle(step: TargetStep, device: torch.device) -> None:
    """Wait for a step that samples nothing: there is nothing to fetch of it, and without a wait its time would be
    counted as that of the next one."""
    if device.type == "cuda" and not step.sample.any():
        torch.cuda.current_stream(device).synchronize()
