"""Drafters of every kind in one batch, on a real engine: the tokens are those of plain decoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.drafters import weights
from python_backend.drafters.engine import NetworkDrafter
from python_backend.engines.torch_engine import TorchEngine
from python_backend.settings import WORKLOADS, CoordinatorSettings, TargetSettings
from tests.support.host import ask, settings_for, start
from tests.training.drafting import KINDS, toy_config

LIMITS = {"max_sequences": 6, "max_length": 128, "depth": 4, "prefill_rows": 16}
LAYERS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def parts(tiny_llama, tmp_path_factory):
    """The target, and a drafter of each kind with random weights: hardly ever right, which is the harder case."""
    target = TorchEngine(
        tiny_llama,
        TargetSettings(checkpoint=str(tiny_llama), feature_layers=LAYERS, threads=1),
        CoordinatorSettings(**LIMITS),
    )
    drafters = {}
    for kind in KINDS:
        config = toy_config(
            kind,
            hidden_size=48,
            heads=6,
            kv_heads=2,
            vocabulary_size=300,
            draft_vocabulary_size=300,
            target_sha256=weights_sha256(tiny_llama),
        )
        torch.manual_seed(1)
        network = weights.build_network(
            config, weights.target_parts(tiny_llama), torch.arange(300), torch.ones(len(config.feature_layers))
        )
        folder = tmp_path_factory.mktemp(kind)
        weights.save(network, folder)
        drafters[f"drafter_{kind}"] = NetworkDrafter(kind, folder, tiny_llama, 6, 128)
    return target, drafters


@pytest.mark.parametrize("kinds", [KINDS[:3], KINDS[3:]])
def test_tokens_are_those_of_plain_decoding(parts, kinds, tmp_path):
    target, drafters = parts
    mine = {f"drafter_{kind}": drafters[f"drafter_{kind}"] for kind in kinds}
    service = start(settings_for(list(mine), cache_dir=tmp_path, coordinator=LIMITS), target, mine)
    rng = np.random.default_rng(0)
    requests = [
        {
            "input_ids": rng.integers(3, 300, rng.integers(2, 40)).tolist(),
            "max_tokens": 24,
            "end_id": -1,
            "temperature": float(i % 2),
            "seed": i,
            "workload": WORKLOADS[i % 3],
        }
        for i in range(9)
    ]
    outputs = {}
    for policy in ("off", "fixed", "dcut"):
        service.set_policy(policy)
        answers = [ask(service, **request) for request in requests]
        outputs[policy] = [answer.wait().ids for answer in answers]
    service.shutdown()
    assert outputs["fixed"] == outputs["off"]
    assert outputs["dcut"] == outputs["off"]
