"""Small random drafters."""

from __future__ import annotations

from pathlib import Path

import torch

from python_backend.drafters import weights
from python_backend.engines.checkpoint import weights_sha256
from tests.checkpoints import SHAPE, VOCABULARY
from tests.training.drafting import toy_config


def save_drafter(kind: str, folder: Path, checkpoint: Path, feature_layers: tuple[int, ...]) -> Path:
    """A random drafter of a kind for a target of `tests.checkpoints`."""
    config = toy_config(
        kind,
        hidden_size=SHAPE["hidden_size"],
        intermediate_size=64,
        heads=6,
        kv_heads=2,
        vocabulary_size=VOCABULARY,
        draft_vocabulary_size=200,
        target_sha256=weights_sha256(checkpoint),
        feature_layers=feature_layers,
    )
    torch.manual_seed(3)
    scale = torch.ones(len(feature_layers))
    network = weights.build_network(config, weights.target_parts(checkpoint), torch.arange(200) * 3 // 2, scale)
    weights.save(network, folder)
    return folder
