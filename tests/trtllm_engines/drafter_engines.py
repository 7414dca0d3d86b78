"""Trained drafters of every kind over a tiny target, their exported graphs, and engines that the fake TensorRT runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from python_backend.drafters.contract import contracts
from tests.support.drafters import save_spread
from tests.training.drafting import KINDS
from trtllm_engines.build_drafter import copy_table, ranges
from trtllm_engines.drafter_folder import DrafterFolder

SLOTS, LENGTH = 5, 120  # of the drafters under test
__all__ = ["KINDS", "LENGTH", "SLOTS", "save_spread", "write_drafter_engines"]


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
