"""Drafter networks to measure with: the shipped weights where there are any, else fresh ones of the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from python_backend.assembly.drafters import weights_folder
from python_backend.checkpoints.checkpoint import weights_sha256
from python_backend.checkpoints.decoder import read_config
from python_backend.drafters import weights
from python_backend.drafters.config import CONFIG, WEIGHTS, DrafterConfig, Kind
from python_backend.settings import DrafterSettings

NAMES: dict[str, Kind] = {"drafter_mtp": "mtp", "drafter_dfly": "dfly"}
DRAFT_VOCABULARY = 16384


class Drafter(NamedTuple):
    """Where a drafter's weights are, and whether they were trained or only have the shape."""

    folder: Path
    trained: bool


def find_drafters(checkpoint: Path, scratch: Path) -> dict[str, Drafter]:
    """By the name of the Triton model. scratch: where fresh weights are written."""
    found = {}
    for name, kind in NAMES.items():
        shipped = weights_folder(name, DrafterSettings())
        trained = _belongs(shipped, checkpoint)
        found[name] = Drafter(shipped if trained else save_fresh(kind, scratch / name, checkpoint), trained)
    return found


def save_fresh(kind: Kind, folder: Path, checkpoint: Path) -> Path:
    """An untrained drafter for a target: hardly ever right, and as large as a trained one."""
    target = read_config(checkpoint)
    block = kind != "mtp"
    config = DrafterConfig.for_target(
        target,
        weights_sha256(checkpoint),
        kind=kind,
        depth=7,
        layers=3 if block else 1,
        feature_layers=tuple(range(max(0, target.layers - 4), target.layers - 1)) if block else (target.layers,),
        qk_norm=False,
        draft_vocabulary_size=min(DRAFT_VOCABULARY, target.vocabulary_size),
    )
    torch.manual_seed(0)
    draft_ids, scale = torch.arange(config.draft_vocabulary_size), torch.ones(len(config.feature_layers))
    weights.save(weights.build_network(config, weights.target_parts(checkpoint), draft_ids, scale), folder)
    return folder


def _belongs(folder: Path, checkpoint: Path) -> bool:
    """Whether there are weights, trained for this target."""
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        return False
    return DrafterConfig.read(folder).target_sha256 == weights_sha256(checkpoint)
