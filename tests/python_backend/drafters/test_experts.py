"""Drafters of a target with experts: its shape, with plain layers of its `intermediate_size`; begun, saved, served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.checkpoints.decoder import load_weights, read_config
from python_backend.drafters.engine import NetworkDrafter
from python_backend.drafters.weights import load, save, target_parts
from python_backend.protocol import Context, DrafterStep
from tests.support.checkpoints import SHAPE, save_tiny
from training.fit.recipe import Recipe
from training.fit.trainer import drafter_config, fresh_network

LAYERS = {"mtp": (3,), "dfly": (0, 1)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("qwen3_moe", tmp_path_factory.mktemp("moe"))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_drafter_of_a_mixture_of_experts_is_begun_saved_and_served(
    kind: str, checkpoint: Path, tmp_path: Path
) -> None:
    copied = (1,) if kind == "dfly" else ()
    recipe = Recipe(
        kind=kind,
        depth=3,
        layers=1,
        feature_layers=LAYERS[kind],
        copy_layers=copied,
        draft_vocabulary_size=200,
        stages=[{"share": 1, "depth": 3}],
        steps=1,
        tokens_per_step=16,
        learning_rate=1e-3,
        warm_up=1,
    )
    shape = read_config(checkpoint)
    config = drafter_config(recipe, shape, weights_sha256(checkpoint))
    ids, scale = torch.arange(config.draft_vocabulary_size), torch.ones(len(LAYERS[kind]))
    network = fresh_network(recipe, config, target_parts(checkpoint), load_weights(checkpoint), ids, scale)
    assert config.intermediate_size == SHAPE["intermediate_size"]
    layer = network.layers[0] if kind == "dfly" else network.layer
    assert layer.gate_up.weight.shape[0] == 2 * SHAPE["intermediate_size"]
    # A layer with experts has no one network to copy: the copy begins without one, and disturbs nothing.
    assert bool(copied) != bool(layer.down.weight.any())
    save(network, tmp_path)
    assert load(tmp_path, checkpoint).config == config
    served = NetworkDrafter("d", tmp_path, checkpoint, 2, 64)
    random = np.random.default_rng(0)
    drafted = served.step(
        DrafterStep.of([Context(0, 0, [5, 6], random.normal(size=(2, config.feature_size)).astype(np.float32), 7)], 3)
    )
    assert drafted.draft_ids.shape == (1, 3)
