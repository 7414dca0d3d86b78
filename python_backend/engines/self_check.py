"""A start-up check: an engine's logits against those of the PyTorch network in float32.

The reference is computed at the first start on a checkpoint and kept beside its weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from python_backend.engines.base import EngineError
from python_backend.protocol import TargetStep
from python_backend.sampling.params import greedy_columns
from python_backend.settings import CoordinatorSettings, TargetSettings, WeightMode

Floats = npt.NDArray[np.float32]

FILE = "reference_logits.json"
ROWS = (20, 4, 1)  # a prompt chunk, a verify pass and a decode, one after the other
COLUMNS = 64  # vocabulary ids compared, spread evenly
# Largest difference allowed, as a part of the largest reference logit. Measured on the embedded model: 1e-5 for exact
# weights, up to 0.15 for 8 bits; weights with rounded zero points, which write repetitive text, are at 1.
LIMITS: dict[WeightMode, float] = {"exact": 1e-4, "int8-dynamic": 0.3}


class Reference(NamedTuple):
    """Logits of fixed tokens at some vocabulary ids."""

    sha256: str  # of the weights they belong to
    token_ids: list[int]  # [sum(ROWS)]
    columns: list[int]  # [COLUMNS]
    logits: list[list[float]]  # [sum(ROWS), COLUMNS]


def self_check(reference: Reference, mode: WeightMode, forward: Callable[[TargetStep], Floats]) -> None:
    """Raise EngineError where the engine's logits are further from the reference than the mode allows.

    forward: logits [R, vocabulary] of all rows of a step on slot 0.
    """
    token_ids = np.array(reference.token_ids, dtype=np.int32)
    computed: list[Floats] = []
    past = 0
    for count in ROWS:
        logits = forward(step_of(token_ids[past : past + count], past))
        computed.append(logits[:, reference.columns].copy())
        past += count
    expected = np.array(reference.logits, dtype=np.float32)
    difference = np.abs(np.concatenate(computed) - expected)
    row, column = np.unravel_index(np.nanargmax(difference), difference.shape)
    limit = LIMITS[mode] * float(np.abs(expected).max())
    if not difference.max() <= limit:  # also refuses NaN
        raise EngineError(
            f"self-check failed: the logit of token {reference.columns[column]} after {row + 1} tokens is "
            f"{np.concatenate(computed)[row, column]:.6g}, the reference says {expected[row, column]:.6g}, limit of "
            f"the difference {limit:.2g} for weights '{mode}'. Fetch the model again; if it stays so, use engine torch"
        )


def load_reference(folder: Path, sha256: str, vocabulary_size: int) -> Reference:
    """The reference kept beside the weights, computed and kept where it is missing or of other weights."""
    file = folder / FILE
    if file.is_file():
        stored = Reference(**json.loads(file.read_text()))
        if stored.sha256 == sha256:
            return stored
    reference = compute_reference(folder, sha256, vocabulary_size)
    try:
        file.write_text(json.dumps(reference._asdict()) + "\n")
    except OSError:  # a read-only model store: computed again at every start
        return reference
    return reference


def compute_reference(folder: Path, sha256: str, vocabulary_size: int) -> Reference:
    """Run the PyTorch network over random tokens."""
    from python_backend.engines.torch_engine import TorchEngine

    rows = sum(ROWS)
    random = np.random.default_rng(0)
    token_ids = random.integers(vocabulary_size, size=rows).astype(np.int32)
    columns = np.unique(np.linspace(0, vocabulary_size - 1, COLUMNS).astype(np.int64))
    engine = TorchEngine(folder, TargetSettings(), CoordinatorSettings(max_sequences=1, max_length=rows))
    logits = engine.network.head(engine.forward(step_of(token_ids, 0)).hidden)[:, columns]
    return Reference(sha256, token_ids.tolist(), columns.tolist(), logits.tolist())


def step_of(token_ids: npt.NDArray[np.int32], past: int) -> TargetStep:
    """The next rows of slot 0, without drafts."""
    return TargetStep(
        **greedy_columns(1),
        slot=np.array([0], dtype=np.int32),
        past_length=np.array([past], dtype=np.int32),
        row_count=np.array([len(token_ids)], dtype=np.int32),
        sample=np.array([False]),
        draft_count=np.array([0], dtype=np.int32),
        token_ids=token_ids,
    )
