"""Trained drafters of every kind over a tiny target, their exported graphs, and engines that the fake TensorRT runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from python_backend.drafters import weights
from python_backend.engines.checkpoint import weights_sha256
from tests.checkpoints import SHAPE, VOCABULARY
from tests.training.drafting import KINDS, LAYERS, toy_config
from trtllm_engines.build_drafter import copy_table, ranges
from trtllm_engines.drafter_contract import contracts
from trtllm_engines.drafter_folder import DrafterFolder

DRAFTED = torch.arange(200) * 3 // 2  # not every token can be drafted
SLOTS, LENGTH = 5, 120  # of the drafters under test
__all__ = ["KINDS", "LENGTH", "SLOTS", "save_spread", "write_drafter_engines"]


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


def write_drafter_engines(
    graphs: Path,
    folder: Path,
    sequences: int = 8,
    rows: int = 64,
    context: int = 160,
    wrong: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Engines of exported graphs, as `build_drafter` would leave them. wrong: by graph, see the fake."""
    folder.mkdir(parents=True, exist_ok=True)
    step, prompt = ranges(sequences, rows, context)
    for contract in contracts(DrafterFolder.read(graphs).config):
        profiles = [step, prompt] if contract.name == "append" else [step]
        engine = {
            "graph": str(graphs / f"{contract.name}.onnx"),
            "profiles": profiles,
            "wrong": (wrong or {}).get(contract.name, {}),
        }
        (folder / f"{contract.name}.engine").write_text(json.dumps(engine))
    copy_table(graphs, folder)
    return folder
