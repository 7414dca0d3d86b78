"""The OpenVINO engine alone, and its logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from python_backend.engines.openvino_engine import OpenVinoEngine
from python_backend.protocol import Part
from python_backend.settings import CoordinatorSettings, TargetSettings
from tests.support.checkpoints import make_step


def load_openvino(folder: Path, slots: int = 8, max_length: int = 256, **target: Any) -> OpenVinoEngine:
    return OpenVinoEngine(
        folder,
        TargetSettings.model_validate(
            {"engine": "openvino", "checkpoint": str(folder), "quantization": "exact", **target}
        ),
        CoordinatorSettings(max_sequences=slots, max_length=max_length),
    )


def all_logits(engine: OpenVinoEngine, *parts: Part) -> Any:
    """[R, V] logits of every row, also of those that a step would not need."""
    step = make_step(*parts)
    return engine.forward(step, np.arange(len(step.token_ids))).logits.copy()
