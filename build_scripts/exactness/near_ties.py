"""How close two tokens were: recomputed by `transformers`, independent of the engines under test."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from python_backend.sampling.noise import exponentials
from python_backend.sampling.processors import penalise

NEAR_TIE = 2e-3  # gap of the two best scores below which float32 rounding may decide


@torch.inference_mode()
def gap(model: Any, prompt: list[int], request: dict[str, Any], output: list[int], one: int, other: int) -> float:
    """Score gap between two tokens after `output`: logits, plus the keyed noise at temperature above 0."""
    ids = np.array([*prompt, *output], dtype=np.int32)
    scores = model(torch.from_numpy(ids[None].astype(np.int64)).to(model.device)).logits[0, -1].cpu().numpy().copy()
    penalise(scores, ids, len(prompt), float(request["repetition_penalty"]), 0.0, 0.0)
    if request["temperature"] > 0:
        noise = exponentials(int(request["seed"]), len(ids), len(scores))
        scores = scores / request["temperature"] - np.log(noise)
    return float(abs(scores[one] - scores[other]))
