"""Small random drafters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.drafters import weights
from python_backend.protocol import Context, DrafterStep
from tests.support.checkpoints import SHAPE, VOCABULARY
from tests.training.drafting import LAYERS, toy_config

DRAFTED = torch.arange(200) * 3 // 2  # not every token can be drafted


def save_drafter(kind: str, folder: Path, checkpoint: Path, feature_layers: tuple[int, ...]) -> Path:
    """A random drafter of a kind for a target of `tests.support.checkpoints`."""
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


def save_spread(kind: str, folder: Path, checkpoint: Path, layers: Sequence[int] = (0, 2, 3)) -> Path:
    """A drafter whose weights are all random, so that every path shows in its drafts."""
    config = toy_config(
        kind,
        layers=2 if kind == "dfly" else 1,
        feature_layers=(LAYERS,) if kind == "mtp" else tuple(layers),
        hidden_size=SHAPE["hidden_size"],
        intermediate_size=64,
        heads=6,
        kv_heads=2,
        vocabulary_size=VOCABULARY,
        draft_vocabulary_size=len(DRAFTED),
        target_sha256=weights_sha256(checkpoint),
        max_position=256,
    )
    torch.manual_seed(3)
    scale = torch.rand(len(config.feature_layers)) + 0.5
    network = weights.build_network(config, weights.target_parts(checkpoint), DRAFTED, scale)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.ndim == 1 else 0.0))
    weights.save(network, folder)
    return folder


def random_step(
    slots: Sequence[int],
    past: Sequence[int],
    count: Sequence[int],
    draw: int,
    width: int,
    depth: int = 4,
    **columns: Any,
) -> DrafterStep:
    """Random context rows of each slot, the last one's following token the anchor. columns: instead of those."""
    random = np.random.default_rng(draw)
    contexts = [
        Context(s, p, random.integers(0, VOCABULARY, c).tolist(), random.normal(size=(c, width)).astype(np.float32))
        for s, p, c in zip(slots, past, count, strict=True)
    ]
    return DrafterStep.of(contexts, depth, **columns)
